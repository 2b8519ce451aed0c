"""`fedbeyond data check` and `data info`: what is wrong with a folder is found, named and comes with what to do."""

import random
import re
import shlex
import sys

import numpy as np
import pytest
from PIL import Image

from fedbeyond.cli import main
from fedbeyond.data.check.check import check
from fedbeyond.data.check.findings import closest_release, wrong_counts
from fedbeyond.data.check.info import count_table, info
from fedbeyond.data.datasets import facts
from fedbeyond.data.datasets._benchmarks import KNOWN
from fedbeyond.data.datasets.facts import FACTS, Release, total
from fedbeyond.data.storage.listing import Listing, Records
from fedbeyond.errors import ConfigError
from support.paths import ROOT

DOMAINS, CLASSES = KNOWN["pacs"].domains, KNOWN["pacs"].classes
EACH = 2


def noise(path, kind="JPEG"):
    """An image like no other: noise that depends on its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = random.Random("/".join(path.parts[-3:])).randbytes(16 * 16 * 3)
    Image.frombytes("RGB", (16, 16), values).save(path, kind)


@pytest.fixture
def pacs(tmp_path, monkeypatch):
    """A small PACS that the known numbers fit."""
    for domain in DOMAINS:
        for name in CLASSES:
            for number in range(EACH):
                noise(tmp_path / "pacs" / domain / name / f"{number}.jpg")
    known = Release("small", {domain: (EACH,) * len(CLASSES) for domain in DOMAINS})
    monkeypatch.setitem(facts.FACTS, "pacs", FACTS["pacs"]._replace(releases=(known,)))
    return tmp_path / "pacs"


@pytest.fixture
def call(capsys, monkeypatch):
    def fedbeyond(*words):
        monkeypatch.setattr(sys, "argv", ["fedbeyond", "data", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.main()
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return fedbeyond


def write_lists(root, bases, ending="_kfold.txt"):
    for domain, base in bases.items():
        lines = [f"{domain}/{name}/{i}.jpg {label + base}\n" for label, name in enumerate(CLASSES) for i in range(EACH)]
        (root / f"{domain}_train{ending}").write_text("".join(lines))


def test_a_whole_copy_has_its_numbers_a_picture_and_no_finding(pacs, call, tmp_path):
    code, out, _ = call("check", pacs, "--out", tmp_path / "grid.png")
    assert code == 0 and f"{pacs}: pacs, folders of domain/class/image\n4 domains, 7 classes\n" in out
    assert "  sketch          2         2        2       2      2      2       2   14        14\n" in out
    assert out.endswith(f"picture: {tmp_path / 'grid.png'}\nno findings\n") and "to do" not in out
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width > 7 * 3 * 64


def spoilt(pacs, how):
    """Spoil a copy in one way."""
    if how == "a deleted image":
        (pacs / "photo" / "dog" / "0.jpg").unlink()
    elif how == "a truncated image":
        path = pacs / "photo" / "dog" / "0.jpg"
        path.write_bytes(path.read_bytes()[:-200])
    elif how == "an empty image":
        (pacs / "photo" / "dog" / "0.jpg").write_bytes(b"")
    elif how == "a text that is called an image":
        (pacs / "photo" / "dog" / "0.jpg").write_text("not found")
    elif how == "a renamed class":
        (pacs / "sketch" / "guitar").rename(pacs / "sketch" / "gitarre")
    elif how == "a list from 1":
        write_lists(pacs, {"photo": 1})
    elif how == "a list from 1 among others":
        write_lists(pacs, dict.fromkeys(DOMAINS, 0) | {"cartoon": 1})
    elif how == "a wrong label in a list":
        write_lists(pacs, dict.fromkeys(DOMAINS, 0))
        path = pacs / "photo_train_kfold.txt"
        path.write_text(path.read_text().replace("house/1.jpg 5", "house/1.jpg 2"))
    elif how == "a text among images":
        (pacs / "photo" / "house" / "notes.txt").write_text("hello")
    elif how == "a copy in the same class":
        (pacs / "photo" / "dog" / "9.jpg").write_bytes((pacs / "photo" / "dog" / "0.jpg").read_bytes())
    elif how == "a copy in another domain":
        (pacs / "photo" / "dog" / "9.jpg").write_bytes((pacs / "sketch" / "dog" / "0.jpg").read_bytes())
    elif how == "a copy in another class":
        (pacs / "photo" / "dog" / "0.jpg").write_bytes((pacs / "photo" / "horse" / "0.jpg").read_bytes())
    elif how == "a listed image that is gone":
        write_lists(pacs, dict.fromkeys(DOMAINS, 0))
        (pacs / "photo" / "dog" / "0.jpg").unlink()


FINDINGS = {
    "a deleted image": ["missing: 1 image fewer than expected\n  photo/dog: 1, expected 2\n  to do: unpack"],
    "a truncated image": ["corrupt: 1 image cannot be decoded\n  photo/dog/0.jpg: truncated\n  to do"],
    "an empty image": ["corrupt: 1 image cannot be decoded\n  photo/dog/0.jpg: empty\n  to do: replace"],
    "a text that is called an image": ["corrupt: 1 image cannot be decoded\n  photo/dog/0.jpg: not an image\n"],
    "a renamed class": [
        "unknown class: 1 folder with unknown names\n  sketch/gitarre, 2 images: the number expected of guitar\n",
        "missing: 2 images fewer than expected\n  sketch/guitar: 0, expected 2",
    ],
    "a list from 1": [
        "labels from 1: 1 of 1 lists begin with 1, read as 0 to 6\n  photo_train_kfold.txt\n  to do: fedbeyond"
    ],
    "a list from 1 among others": [
        "labels from 1: 1 of 4 lists begin with 1, read as 0 to 6\n  cartoon_train_kfold.txt\n"
    ],
    "a wrong label in a list": ["photo/house/1.jpg is 2, expected 5 (house); fix the list\n  to do: fix it"],
    "a text among images": ["not images: 1 other file among the images\n  photo/house/notes.txt\n  to do: move"],
    "a copy in the same class": [
        "too many: 1 image more than expected\n  photo/dog: 3, expected 2",
        "duplicates: 1 image more than once in one class of a domain\n  photo/dog/0.jpg = photo/dog/9.jpg\n",
    ],
    "a copy in another domain": [
        "too many: 1 image more than expected",
        "duplicates: 1 image in more than one domain\n  photo/dog/9.jpg = sketch/dog/0.jpg\n",
    ],
    "a copy in another class": ["mislabelled: 1 image in more than one class\n  photo/dog/0.jpg = photo/horse/0.jpg\n"],
    "a listed image that is gone": ["missing: 1 image listed, but not on disk\n  photo/dog/0.jpg\n  to do: copy"],
}


@pytest.mark.parametrize("how", FINDINGS)
def test_what_is_wrong_is_found_named_and_alone(how, pacs, call):
    spoilt(pacs, how)
    code, out, err = call("check", pacs, "--no-picture")
    assert code == 1 and not err and "pacs" in out.splitlines()[0]
    for said in FINDINGS[how]:
        assert said in out, out
    many = len(FINDINGS[how])
    assert out.endswith(f"\n{many} finding{'s' * (many > 1)}\n") and "picture" not in out


def test_a_picture_is_drawn_without_what_cannot_be_opened(pacs, call, tmp_path):
    spoilt(pacs, "a truncated image")
    code, out, _ = call("check", pacs, "--out", tmp_path / "grid.png")
    assert code == 1 and (tmp_path / "grid.png").exists() and "picture: " in out


def test_the_lists_that_pacs_comes_with_are_a_note(pacs):
    write_lists(pacs, dict.fromkeys(DOMAINS, 1))
    out, well = check(pacs)
    assert well and "note: labels from 1: 4 of 4 lists begin with 1" in out and "nothing: PACS is released so" in out
    noise(pacs / "photo" / "dog" / "unlisted.jpg")
    out, well = check(pacs)
    assert well and "note: not read: 1 image in no class folder or no list\n  photo/dog/unlisted.jpg\n" in out
    noise(pacs / "photo" / "stray.jpg")
    out, well = check(pacs)
    assert well and "note: not read: 2 images in no class folder or no list\n  photo/stray.jpg\n" in out
    for path in pacs.glob("*.txt"):
        path.rename(path.with_name(path.name.replace("_kfold", "")))
    out, well = check(pacs)
    assert not well and "4 of 4 lists begin with 1" in out and "subtract 1 before" in out


def test_duplicates_that_a_dataset_is_given_out_with_are_a_note(pacs, monkeypatch):
    (pacs / "photo" / "dog" / "0.jpg").write_bytes((pacs / "photo" / "dog" / "1.jpg").read_bytes())
    (release,) = FACTS["pacs"].releases
    distinct = release._replace(distinct=True)
    monkeypatch.setitem(facts.FACTS, "pacs", FACTS["pacs"]._replace(releases=(distinct,)))
    out, well = check(pacs)
    assert not well and "\nduplicates: 1 image more than once in one class of a domain\n  photo/dog/0.jpg = " in out
    monkeypatch.setitem(facts.FACTS, "pacs", FACTS["pacs"]._replace(releases=(release,)))
    out, well = check(pacs)
    assert well and "note: duplicates: 1 image more than once in one class of a domain, in" in out


def test_at_most_a_handful_is_named(pacs):
    for name in CLASSES:
        (pacs / "photo" / name / "0.jpg").write_text("?")
    out, well = check(pacs)
    assert not well and out.count("not an image\n") == 5 and "  and 2 more\n" in out


def test_a_domain_that_is_missing_is_said(pacs):
    (pacs / "sketch").rename(pacs / ".sketch")
    out, well = check(pacs, "pacs")
    assert not well and "no folder of sketch; found art_painting, cartoon, photo" in out and "3 domains" in out
    out, well = check(pacs)
    assert well and "custom folder of" in out and "note: perhaps pacs\n  has no sketch\n" in out


def test_a_folder_of_ones_own_is_checked_too(tmp_path):
    for domain in ("north", "south"):
        for name in ("cat", "dog"):
            for number in range(2):
                noise(tmp_path / domain / name / f"{number}.png", "PNG")
    out, well = check(tmp_path)
    assert well and "2 domains, 2 classes, no expected numbers to compare with\n" in out
    (tmp_path / "south" / "dog").rename(tmp_path / "south" / "Dog")
    out, well = check(tmp_path)
    assert (
        not well and "uneven classes: some domains lack some classes\n  north has no Dog\n  south has no dog\n" in out
    )


def test_images_outside_of_class_folders_are_told(tmp_path):
    for place in ("north/cat/0", "north/cat/1", "north/dog/0", "north/dog/1"):
        noise(tmp_path / f"{place}.png", "PNG")
        noise(tmp_path / f"{place.replace('north', 'south')}.png", "PNG")
    noise(tmp_path / "south" / "1.png", "PNG")
    out, well = check(tmp_path)
    assert well and "note: not read: 1 image in no class folder or no list\n  south/1.png\n" in out


def test_a_single_domain_is_told_since_training_needs_two(tmp_path):
    for domain in ("north", "south"):
        noise(tmp_path / "all" / domain / "cat" / "0.png", "PNG")
    out, well = check(tmp_path)
    assert not well and "\n1 domain, 2 classes, no expected" in out
    assert "one domain: training needs two, one of them unseen\n  all\n  to do: if the folders in all are" in out


def test_a_domain_without_a_readable_image_leaves_a_gap_in_the_picture(tmp_path):
    for domain in ("north", "south"):
        noise(tmp_path / "data" / domain / "cat" / "0.png", "PNG")
    for spoilt in ("south", "north"):
        (tmp_path / "data" / spoilt / "cat" / "0.png").write_bytes(b"?")
        out, well = check(tmp_path / "data", picture=tmp_path / f"{spoilt}.png")
        assert not well and f"{spoilt}/cat/0.png: not an image\n" in out and (tmp_path / f"{spoilt}.png").is_file()


def test_arrays_are_checked_too(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (6, 5, 5), np.uint8)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=images, y=[0, 1, 2] * 2)
        images = images[::-1].copy()
        images[0] += 1
    out, well = check(tmp_path, picture=tmp_path / "grid.png")
    assert not well and "one .npz for each domain" in out
    assert "duplicates: 2 images in more than one domain\n  north image 1 = south image 4\n" in out
    assert "mislabelled: 3 images in more than one class\n  north image 0 = south image 5\n" in out


def test_a_folder_that_nothing_can_be_made_of_is_said(tmp_path, call):
    code, out, _ = call("check", tmp_path)
    assert (
        code == 1 and "not recognised" in out and "neither folders nor .npz files; expected domain/class/image" in out
    )
    write_lists(tmp_path, dict.fromkeys(DOMAINS, 1))
    code, out, _ = call("check", tmp_path)
    assert code == 1 and "pacs, not recognised" in out and "which does not exist in" in out
    code, _, err = call("check", tmp_path / "none")
    assert code == 2 and "none: no such file or folder; give the folder that holds the dataset" in err
    code, _, err = call("check", tmp_path, "--as", "pascal")
    assert code == 2 and "dataset 'pascal' is not known; did you mean 'pacs'?" in err


def test_two_folders_of_one_domain_are_said(pacs):
    (pacs / "photo" / "dog").rename(pacs / "photo" / "hund")
    noise(pacs / "Photo " / "dog" / "0.jpg")
    out, well = check(pacs)
    assert well is False and "note: perhaps pacs\n" in out and "are both folders of photo" in out


def counts_of(domains):
    """A listing that has so many images of the first class in each domain."""
    bare = np.zeros((1, 1, 1), np.uint8)
    records = {name: Records(bare, np.zeros(many, np.int64)) for name, many in domains.items()}
    return Listing(tuple("abcdefg"), records, "nothing")


def test_a_copy_is_held_against_the_release_it_is_most_like():
    old, new = FACTS["terraincognita"].releases
    for release in (old, new):
        listing = counts_of({domain: total(count) for domain, count in release.counts.items()})
        assert closest_release(listing, (old, new)) is release and not list(wrong_counts(listing, release))
    fewer = counts_of({domain: total(count) - 1 for domain, count in new.counts.items()})
    (found,) = wrong_counts(fewer, closest_release(fewer, (old, new)))
    assert found.title == "missing: 4 images fewer than expected" and "unchecked" in found.remedy


def test_a_copy_in_dassls_layout_may_lack_the_file_that_dassl_leaves_out():
    listing = counts_of({"sketch": 771})._replace(layout="without sketch/dog/n02103406_4068-1.png as in Dassl")
    release = closest_release(listing, FACTS["pacs"].releases)
    assert release.counts["sketch"] == (771, 740, 753, 608, 816, 80, 160) and total(release.counts["photo"]) == 1670


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_of_a_dataset_fits_its_domains_and_classes(name, call):
    known, told = KNOWN[name], FACTS[name]
    for release in told.releases:
        assert set(release.counts) <= set(known.domains)
        assert all(isinstance(count, int) or len(count) == len(known.classes) for count in release.counts.values())
    code, out, _ = call("info", name)
    assert code == 0 and told.page in out and told.licence in out and all(layout in out for layout in told.layouts)
    assert ", ".join(known.domains) in out and "nothing is ever downloaded" in out
    assert out.count("(unchecked)") >= sum(not release.checked for release in told.releases)


TOTALS = {"pacs": 9991, "vlcs": 10729, "officehome": 15588, "terraincognita": 24788, "domainnet": 586575,
          "camelyon17": 455954, "gdrbench": 11357, "isic2019": 23247}  # fmt: skip


def test_the_known_numbers_sum_up_to_those_the_field_prints():
    for name, images in TOTALS.items():
        assert sum(map(total, FACTS[name].releases[0].counts.values())) == images
    assert [total(count) for count in FACTS["pacs"].releases[0].counts.values()] == [2048, 2344, 1670, 3929]
    assert sum(map(total, FACTS["terraincognita"].releases[1].counts.values())) == 24330


def test_info_without_a_name_is_a_line_about_each(call):
    code, out, _ = call("info")
    assert code == 0 and all(any(line.startswith(name) for line in out.splitlines()) for name in KNOWN)
    assert "10 of 345  586575 ?" in out
    with pytest.raises(ConfigError, match="did you mean 'vlcs'"):
        info("vlc")


def write_visits(path):
    """A table with a stray text, dates, and a label in another spelling."""
    rng, lines = random.Random(3), ["hospital,age,smokes,admitted,state"]
    for number in range(60):
        age = {5: "6o", 9: ""}.get(number, str(rng.randint(30, 80)))
        smokes, state = rng.choice(("yes", "no")), "ILL" if number == 20 else rng.choice(("ill", "well"))
        lines.append(f"{'north' if number < 30 else 'south'},{age},{smokes},2024-03-{number % 28 + 1:02},{state}")
    path.write_text("\n".join(lines) + "\n")


def test_the_page_shows_what_the_programs_and_commands_say(call, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "data.md").read_text()
    own, block = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(own, "data.md", "exec"), {})
    assert f"prints `{capsys.readouterr().out.strip()}`" in page
    exec(compile(block, "data.md", "exec"), {})
    write_visits(tmp_path / "visits.csv")
    shown = re.findall(r"^```console\n\$ fedbeyond data (.*?)\n(.*?)^```", page, re.S | re.M)
    assert [command.split()[0] for command, _ in shown] == ["info", "info", "check", "check"]
    for command, output in shown:
        assert call(*shlex.split(command))[1] == output


def test_a_table_too_wide_for_a_terminal_has_a_line_for_each_class():
    names = [f"a class with a long name {number}" for number in range(4)]
    narrow = count_table({"a": (1, 2, 3, 4), "b": (5, 6, 7, 8)}, names)
    assert max(map(len, narrow)) <= 80 and narrow[0].split() == ["class", "a", "b", "all"]
    assert narrow[2].split()[-2:] == ["2", "6"] and narrow[-1].split() == ["all", "10", "26", "36"]
    assert count_table({"a": (1, 2)}, ["x", "y"])[0].split() == ["domain", "x", "y", "all"]
