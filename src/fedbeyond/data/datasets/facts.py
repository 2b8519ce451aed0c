"""Facts about known benchmark datasets: origin, licence, layouts and numbers of images.

Numbers that were not counted on real files, and are not from the datasets' official lists, are marked as unchecked.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .naming import Names

Count = int | tuple[int, ...]  # images of a domain, or of each of its classes

FOLDERS = "domain/class/image (DomainBed)"
TERMS = "see the project page"


class Release(NamedTuple):
    """The number of images of each domain in one release of a dataset."""

    name: str
    counts: Mapping[str, Count]
    checked: bool = True
    distinct: bool = False  # no image is in it twice; checked on a complete copy


class Facts(NamedTuple):
    """The origin, licence, layouts and releases of a dataset."""

    page: str
    licence: str
    layouts: Names
    releases: tuple[Release, ...] = ()
    note: str = ""


def total(count: Count) -> int:
    """Return the number of images of a domain."""
    return count if isinstance(count, int) else sum(count)


FACTS = {
    "pacs": Facts(
        "dali-dl.github.io/project_iccv2017.html (Li, Yang, Song, Hospedales: Deeper, Broader and Artier, ICCV 2017)",
        TERMS,
        (
            FOLDERS,
            "raw_images/domain/class/image with the lists <domain>_{train,crossval,test}_kfold.txt, labels from 1 (GA)",
            "images/ and splits/ with such lists, without sketch/dog/n02103406_4068-1.png (Dassl)",
            "lists <domain>_{train,test}.txt, labels from 0, paths absolute or relative (JiGen)",
            "<domain>_{train,val,test}.hdf5 with images and labels from 1 (FedADG)",
            "metadata.csv with split, domain, category, path (WILDS)",
        ),
        (
            Release(
                "PACS",
                {
                    "art_painting": (379, 255, 285, 184, 201, 295, 449),
                    "cartoon": (389, 457, 346, 135, 324, 288, 405),
                    "photo": (189, 202, 182, 186, 199, 280, 432),
                    "sketch": (772, 740, 753, 608, 816, 80, 160),
                },
                distinct=True,
            ),
        ),
    ),
    "vlcs": Facts(
        "the page of Fang, Xu, Rockmore: Unbiased Metric Learning, ICCV 2013; copies with DomainBed, JiGen and Dassl",
        "that of its four sources (Caltech101, LabelMe, PASCAL VOC 2007, SUN09); see their pages",
        (
            FOLDERS,
            "domain/{train,crossval,test,full}/{0..4}/image (JiGen, Dassl)",
            "domain/{train,test}/class/image (FedADG)",
            "lists <DOMAIN>_{train,test}.txt (JiGen: 70 % and 30 %)",
        ),
        (
            Release(
                "VLCS",
                {
                    "caltech": (237, 123, 118, 67, 870),
                    "labelme": (80, 1209, 88, 42, 1237),
                    "pascal": (330, 699, 428, 420, 1499),
                    "sun": (20, 932, 1036, 30, 1264),
                },
            ),
        ),
    ),
    "officehome": Facts(
        "hemanthdv.org/officeHomeDataset.html (Venkateswara and others: Deep Hashing Network, CVPR 2017)",
        "for research, not commercial; see the project page",
        (
            FOLDERS,
            "domain/{train,val}/class/image (Dassl)",
            "<Domain>_img_label_list.txt beside the folders, in any order of classes (GA)",
        ),
        (Release("Office-Home", {"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357}),),
    ),
    "terraincognita": Facts(
        "beerys.github.io/CaltechCameraTraps (Beery, Van Horn, Perona: Recognition in Terra Incognita, ECCV 2018)",
        "CDLA-Permissive as far as we know; see the project page",
        ("location_{100,38,43,46}/class/image (DomainBed)",),
        (
            Release(
                "old release", {"location_100": 4879, "location_38": 9767, "location_43": 4020, "location_46": 6122}
            ),
            Release(
                "current download",
                {"location_100": 4741, "location_38": 9736, "location_43": 3970, "location_46": 5883},
                checked=False,
            ),
        ),
    ),
    "domainnet": Facts(
        "ai.bu.edu/M3SDA (Peng and others: Moment Matching, ICCV 2019)",
        "fair use for research; see the project page",
        (
            FOLDERS,
            "domain/class/image with splits/<domain>_{train,test}.txt (KD3A, Dassl)",
            "not read: FedBN's .pkl lists, which can run code when opened; write them as lists of path and label",
        ),
        (
            Release(
                "all 345 classes without DomainBed's duplicates",
                {
                    "clipart": 48129, "infograph": 51605, "painting": 72266,
                    "quickdraw": 172500, "real": 172947, "sketch": 69128,
                },
                checked=False,
            ),
        ),
        "ten classes (those of FedBN and GA) are read by default; domainnet(classes=all) reads all",
    ),
    "digits": Facts(
        "the pages of MNIST, MNIST-M, SVHN, SynthDigits, USPS (together: Digit-Five of M3SDA, Digits-DG of Dassl)",
        "of each collection: see the five pages",
        (
            "idx, also .gz, in a folder of the collection (MNIST/raw/train-images-idx3-ubyte)",
            ".mat of SVHN and Digit-Five (mnist_data, mnistm_with_label, svhn_*, synth_*, usps_28x28; label 10 is 0)",
            "<collection>.npz with x_train y_train x_test y_test, or x y",
            "collection/digit/image and collection/{train,val}/digit/image (Digits-DG); layouts may be mixed",
            "not read: FedBN's .pkl partitions, which can run code when opened",
        ),
        (
            Release("complete", {"mnist": 70000, "mnist_m": 70000, "svhn": 99289, "synth": 488953, "usps": 9298}),
            Release("Digits-DG", {"mnist": 6000, "mnist_m": 6000, "svhn": 6000, "synth": 6000}, checked=False),
        ),
        "two or more collections are enough",
    ),
    "camelyon17": Facts(
        "wilds.stanford.edu (Camelyon17-WILDS; Koh and others, ICML 2021)",
        "CC0 as far as we know; see the project page",
        ("metadata.csv and patches/ (WILDS); the domain is the center, the group is the patient", FOLDERS),
        (
            Release(
                "WILDS 1.0",
                {
                    "hospital_0": 59436, "hospital_1": 34904, "hospital_2": 85054,
                    "hospital_3": 129838, "hospital_4": 146722,
                },
            ),
        ),
    ),
    "midog": Facts(
        "midog2022.grand-challenge.org; MIDOG++: github.com/DeepMicroscopy/MIDOGpp (Aubreville and others, 2023)",
        "see the project pages",
        (
            "a .json in COCO format, .tiff files beside it or in images/; 64 pixels around the centre of a box",
            FOLDERS,
        ),
        note="354 labelled cases with 9,501 mitotic figures; MIDOG++: 503 cases, 11,937 figures, two more domains "
        "(unchecked)",
    ),
    "gdrbench": Facts(
        "github.com/chehx/DGDR (Che and others: Towards Generalizable Diabetic Retinopathy Grading, MICCAI 2023)",
        "of each collection; FGADR and MESSIDOR-2 must be requested and may not be passed on",
        ("images/domain/class/image with splits/<DOMAIN>_{train,crossval}.txt", FOLDERS),
        (
            Release(
                "GDRBench",
                {
                    "aptos": (1805, 370, 999, 193, 295),
                    "deepdr": (914, 222, 398, 354, 112),
                    "fgadr": (101, 212, 595, 647, 287),
                    "idrid": (168, 25, 168, 93, 62),
                    "messidor": (1017, 270, 347, 75, 35),
                    "rldr": (166, 337, 929, 99, 62),
                },
            ),
        ),
        "DDR and EYEPACS, which only its single-domain setting uses, are not read",
    ),
    "isic2019": Facts(
        "challenge.isic-archive.com, prepared with github.com/owkin/FLamby (Fed-ISIC2019)",
        "CC BY-NC 4.0 as far as we know; see the project page",
        ("train_test_split and ISIC_2019_Training_Input_preprocessed/ (FLamby); the domain is the center", FOLDERS),
        (
            Release(
                "FLamby",
                {
                    "bcn": (2857, 4206, 2809, 737, 1138, 124, 111, 431),
                    "ham_vidir_molemax": (24, 3720, 2, 0, 124, 30, 54, 0),
                    "ham_vidir_modern": (680, 1832, 211, 21, 475, 51, 82, 11),
                    "ham_rosendahl": (342, 803, 296, 109, 490, 30, 3, 186),
                    "msk": (215, 415, 0, 0, 189, 0, 0, 0),
                    "ham_vienna_dias": (67, 350, 5, 0, 10, 4, 3, 0),
                },
            ),
        ),
    ),
}  # fmt: skip
