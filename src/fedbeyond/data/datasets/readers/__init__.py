"""Readers: one function a layout, from a folder to what lies in it, or nothing if it is laid out otherwise."""

from collections.abc import Callable
from pathlib import Path

from ...storage.listing import Listing
from ..naming import Known
from .arrays import hdf5, npz_folder
from .digits import digits
from .folders import folders, parted
from .lists import lists
from .midog import midog
from .tables import camelyon, isic, wilds

Reader = Callable[[Path, Known], Listing | None]

# what each is called when it was looked for in vain; folders last, since others have some beside
READERS: dict[str, Reader] = {
    "metadata.csv of WILDS": camelyon,
    "metadata.csv with domain, category and path": wilds,
    "train_test_split of FLamby": isic,
    "annotations in JSON": midog,
    "lists <domain>_train.txt": lists,
    "HDF5 <domain>_train.hdf5": hdf5,
    "idx, .mat or .npz of digits": digits,
    "<domain>.npz": npz_folder,
    "domain/part/class/image": parted,
    "domain/class/image": folders,
}


def recognise(root: Path, known: Known) -> Listing | None:
    """What a folder holds, by the first reader that knows its layout."""
    for reader in READERS.values():
        listing = reader(root, known)
        if listing is not None:
            return listing
    return None
