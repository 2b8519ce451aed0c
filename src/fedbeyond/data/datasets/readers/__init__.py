"""Readers: one function for each layout; it returns the listing of a folder, or None if the layout is another."""

from collections.abc import Callable
from pathlib import Path

from ...storage.listing import Listing
from ..naming import Known
from .arrays import hdf5, npz_folder
from .digits import digits
from .folders import folders
from .lists import lists
from .midog import midog
from .tables import camelyon, isic, wilds

Reader = Callable[[Path, Known], Listing | None]

# by the name in messages; folders, also those without parts, are last, since other layouts have folders too
READERS: dict[str, Reader] = {
    "metadata.csv of WILDS": camelyon,
    "metadata.csv with domain, category and path": wilds,
    "train_test_split of FLamby": isic,
    "annotations in JSON": midog,
    "lists <domain>_train.txt": lists,
    "HDF5 <domain>_train.hdf5": hdf5,
    "idx, .mat or .npz of digits": digits,
    "<domain>.npz": npz_folder,
    "domain/part/class/image": folders,
}


def recognise(root: Path, known: Known) -> Listing | None:
    """Return the listing of a folder from the first reader that recognises its layout, or None."""
    listings = (reader(root, known) for reader in READERS.values())
    return next((listing for listing in listings if listing is not None), None)
