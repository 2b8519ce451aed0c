"""Decode once: the same bytes as PIL gives, whatever happens to the processes that make them."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedbeyond.classifier import measure
from fedbeyond.data.check.check import check, picture_in_cache
from fedbeyond.data.check.scan import decode_error
from fedbeyond.data.datasets._folder import folder, list_folder
from fedbeyond.data.storage import cache
from fedbeyond.data.storage.cache import load
from fedbeyond.data.storage.listing import Files, Listing, Records
from fedbeyond.errors import DataError, StorageError
from fedbeyond.images import View
from support.modes import readable_for_others, umask


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache of each test's own."""
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(root: Path, domains=("a", "b"), each=6, side=(11, 8)) -> Path:
    """Noise in two classes, no two images alike."""
    rng = np.random.default_rng(0)
    for domain in domains:
        for name in ("cat", "dog"):
            (root / domain / name).mkdir(parents=True)
            for i in range(each):
                noise = rng.integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
                Image.fromarray(noise).save(root / domain / name / f"{i:04}.png")
    return root


def by_pil(path: Path, size: int, box=None) -> np.ndarray:
    with Image.open(path) as image:
        small = (image.crop(box) if box else image).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


def test_the_cache_holds_what_pil_reads(tmp_path):
    root = make(tmp_path / "data")
    Image.new("P", (5, 9), 3).save(root / "a" / "cat" / "grey.gif")
    images, _ = folder(str(root), size=7).images["a"]
    files = sorted((root / "a").rglob("*.*"))
    assert images.dtype == torch.uint8 and images.shape == (13, 3, 7, 7)
    assert np.array_equal(images.numpy(), np.stack([by_pil(file, 7) for file in files]))


def test_the_second_time_no_image_is_opened(tmp_path, monkeypatch, capfd, place):
    root = str(make(tmp_path / "data"))
    first = folder(root, size=5)
    assert f"decoding a: 12 images, 900 bytes into {place}" in capfd.readouterr().err
    monkeypatch.setattr(cache, "decoded", None)
    again = folder(root, size=5)
    assert capfd.readouterr().err == ""
    for domain, (images, labels) in first.images.items():
        assert torch.equal(images, again.images[domain][0]) and torch.equal(labels, again.images[domain][1])
    told = json.loads(next(place.glob("a-5-*.json")).read_text())
    assert told["shape"] == [12, 3, 5, 5] and told["done"] == 12 and told["from"] == str(tmp_path / "data")


def test_a_folder_that_was_moved_is_known_again(tmp_path, monkeypatch):
    root = make(tmp_path / "data")
    folder(str(root), size=5)
    root.rename(tmp_path / "moved")
    monkeypatch.setattr(cache, "decoded", None)
    folder(str(tmp_path / "moved"), size=5)


def test_a_changed_file_is_noticed_and_so_is_another_size(tmp_path, place):
    root = make(tmp_path / "data")
    first = folder(str(root), size=5).images["a"][0]
    path = root / "a" / "dog" / "0003.png"
    before = path.stat()
    Image.new("RGB", (11, 8), "red").save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    second = folder(str(root), size=5).images["a"][0]
    assert (first != second).flatten(1).any(1).nonzero().flatten().tolist() == [9]
    assert second[9, :, 0, 0].tolist() == [255, 0, 0]
    assert folder(str(root), size=6).images["a"][0].shape[2:] == (6, 6)
    assert len(list(place.glob("a-*.pixels"))) == 3 and len(list(place.glob("b-*.pixels"))) == 2


def test_parts_of_files_are_cut_out_and_named(tmp_path, monkeypatch):
    root = make(tmp_path / "data", each=1, side=(40, 30))
    boxes = ((0, 0, 10, 10), (20, 5, 40, 25), (1, 2, 3, 4))
    files = Files(root / "a", ("cat/0000.png", "cat/0000.png", "dog/0000.png"), boxes)
    listing = Listing(
        ("cat", "dog"), {"a": Records(files, np.array([0, 0, 1]), {"test": np.array([2])}, ("x", "x", "y"))}, ""
    )
    loaded = load(listing, 8)
    want = [by_pil(root / "a" / name, 8, box) for name, box in zip(files.names, boxes, strict=True)]
    assert np.array_equal(loaded.images["a"][0].numpy(), np.stack(want))
    note = loaded.note("a")
    assert note.names[1] == "cat/0000.png[20,5,40,25]" and note.groups == ("x", "x", "y")
    assert note.folds["test"].tolist() == [2]
    other = files._replace(boxes=(*boxes[:2], (0, 0, 3, 4)))
    assert not torch.equal(
        load(Listing((), {"a": Records(other, np.zeros(3))}, ""), 8).images["a"][0][2], torch.tensor(want[2])
    )


@pytest.mark.parametrize("shape", [(5, 9, 12), (5, 9, 12, 3)])
def test_arrays_are_decoded_like_files_and_known_by_their_contents(shape, place):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def loaded(array):
        return load(Listing(("x",), {"a": Records(array, np.zeros(len(array)))}, "arrays"), 6)

    images = loaded(pixels).images["a"][0].numpy()
    for row, image in zip(pixels, images, strict=True):
        want = Image.fromarray(row).convert("RGB").resize((6, 6), Image.Resampling.BILINEAR)
        assert np.array_equal(image, np.asarray(want).transpose(2, 0, 1))
    loaded(pixels.copy())
    assert len(list(place.glob("*.pixels"))) == 1
    pixels[4, 0, 0] ^= 255
    loaded(pixels)
    assert len(list(place.glob("*.pixels"))) == 2
    assert loaded(pixels[:0]).images["a"][0].shape == (0, 3, 6, 6)


SCRIPT = """
import sys, time
from pathlib import Path
from fedbeyond.data.storage import cache
from fedbeyond.data.datasets._folder import folder
cache.BLOCK, cache.PATIENCE = 3 * 5 * 5 * 4, 0.2
root, log, stop, go = sys.argv[1:]
original = cache.decoded
def watched(pixels, row, size):
    with open(log, "a") as file:
        file.write(f"{row}\\n")
    while row == int(stop) and not Path(go).exists():
        time.sleep(0.01)
    return original(pixels, row, size)
cache.decoded = watched
print(folder(root, size=5).images["a"][0].sum().item())
"""


def start(root: Path, log: Path, stop: int = -1) -> subprocess.Popen:
    """A process that decodes a folder, notes each row, and at the row `stop` waits until it is told to go on."""
    words = [sys.executable, "-c", SCRIPT, str(root), str(log), str(stop), str(root.parent / "go")]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def seen(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def wait_for(log: Path, rows: int, process: subprocess.Popen) -> None:
    while len(seen(log)) < rows:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def test_two_processes_at_once_decode_once_and_the_second_says_that_it_waits(tmp_path):
    root = make(tmp_path / "data", domains=("a",), each=20)
    first = start(root, tmp_path / "one", stop=10)
    wait_for(tmp_path / "one", 11, first)
    second = start(root, tmp_path / "two")
    assert second.stderr.readline().startswith("waiting for another process that is decoding a into")
    (tmp_path / "go").touch()
    sums = first.communicate()[0], second.communicate()[0]
    assert seen(tmp_path / "one") == list(range(40)) and seen(tmp_path / "two") == []
    assert sums[0] == sums[1] != ""


def test_killed_in_the_middle_it_goes_on_where_it_stopped(tmp_path, place):
    root = make(tmp_path / "data", domains=("a",), each=20)
    process = start(root, tmp_path / "one", stop=18)  # four blocks of four are noted, two rows are not
    wait_for(tmp_path / "one", 19, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list(place.glob("*.pixels")) and len(list(place.glob("*.partial"))) == 1
    (partial,) = place.glob("*.partial")
    with open(partial, "ab") as file:
        file.write(b"half a row that was being written")
    ended = start(root, tmp_path / "two")
    told = ended.communicate()[1]
    again = seen(tmp_path / "two")
    assert again == list(range(16, 40))
    assert "decoding a: 24 images, 1,800 bytes into" in told and "(16 are decoded already)" in told
    images = folder(str(root), size=5).images["a"][0].numpy()
    assert np.array_equal(images, np.stack([by_pil(file, 5) for file in sorted(root.rglob("*.png"))]))
    assert not list(place.glob("*.partial"))


def test_rows_that_are_not_noted_do_not_count(tmp_path, place):
    root = make(tmp_path / "data", domains=("a",))
    whole = folder(str(root), size=5).images["a"][0].clone()
    (path,) = place.glob("*.pixels")
    path.rename(path.with_suffix(".partial"))
    path.with_suffix(".partial").write_bytes(bytes(12 * 75))  # zeros: what a disk may keep after the power failed
    path.with_suffix(".json").write_text('{"do')
    assert torch.equal(folder(str(root), size=5).images["a"][0], whole)
    path.write_bytes(b"cut short by somebody")
    assert torch.equal(folder(str(root), size=5).images["a"][0], whole)


def test_an_old_note_of_a_file_that_is_gone_does_not_vouch_for_a_new_one(tmp_path, place):
    root = make(tmp_path / "data", domains=("a",), each=20)
    folder(str(root), size=5)
    (path,) = place.glob("*.pixels")
    path.unlink()  # its note stays, and says that all 40 rows are there
    process = start(root, tmp_path / "one", stop=2)  # before the first block is noted
    wait_for(tmp_path / "one", 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    path.with_suffix(".partial").write_bytes(bytes(40 * 75))  # what a disk may keep after the power failed
    start(root, tmp_path / "two").communicate()
    assert seen(tmp_path / "two") == list(range(40))


def test_too_little_room_is_refused_before_anything_is_decoded(tmp_path, place, monkeypatch):
    root = make(tmp_path / "data")
    little = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little)
    with pytest.raises(
        StorageError, match=r"decoding a, b needs 1,800 bytes in .*cache, where 1,000 bytes are free; f"
    ):
        folder(str(root), size=5)
    assert list(place.iterdir()) == []


def test_amounts_are_said_as_people_say_them():
    assert [cache.amount(n) for n in (900, 1670 * 3 * 224**2, 1.7e9)] == ["900 bytes", "251 MB", "1.7 GB"]


def test_a_disk_that_fills_up_is_told(tmp_path, monkeypatch):
    root = make(tmp_path / "data")
    with monkeypatch.context() as patch:

        def full(_):
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"No space left on device; free some space.* FEDBEYOND_CACHE"):
            folder(str(root), size=5)
    assert len(folder(str(root), size=5).images["a"][0]) == 12


def test_a_cache_that_cannot_be_written_is_told_and_one_that_is_full_of_use_is_enough(tmp_path, place, monkeypatch):
    root = make(tmp_path / "data")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match=r"cannot write decoded images into .*: Not a directory; .* FEDBEYOND_CACHE"):
        folder(str(root), size=5)
    monkeypatch.setenv("FEDBEYOND_CACHE", str(place))
    folder(str(root), size=5)

    def forbidden(path, mode="r", *rest, **options):
        if mode != "r" and str(path).startswith(str(place)):
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, mode, *rest, **options)

    monkeypatch.setattr(cache, "open", forbidden, raising=False)  # root may write anywhere, and tests may be root's
    folder(str(root), size=5)
    with pytest.raises(StorageError, match=r"cannot write decoded images into .*cache: Permission denied; .* writable"):
        folder(str(root), size=6)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    root = make(tmp_path / "data")
    listing = list_folder(str(root))
    path = root / "b" / "dog" / "0002.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"0002\.png: cannot be read as an image .* remove or replace it"):
        load(listing, 5)
    path.unlink()
    with pytest.raises(DataError, match=r"0002\.png: cannot be read \(No such file or directory\)"):
        load(listing, 5)


@pytest.mark.parametrize(("kind", "ending"), [(np.uint16, "png"), (np.uint16, "tiff"), (np.float32, "tiff")])
def test_pixels_that_do_not_fit_into_bytes_are_refused_not_cut_off(tmp_path, kind, ending):
    root = make(tmp_path / "data")
    path = root / "a" / "cat" / f"scan.{ending}"
    Image.fromarray(np.linspace(0, 4095, 64).reshape(8, 8).astype(kind)).save(path)
    with pytest.raises(DataError, match=rf"scan\.{ending}: .*more than 8 bits a pixel.*; write it with 8 bits"):
        folder(str(root), size=5)
    assert decode_error(path.read_bytes()).startswith("more than 8 bits a pixel")


def test_the_cache_is_the_users_unless_another_is_named(monkeypatch):
    monkeypatch.setenv("FEDBEYOND_CACHE", "~/elsewhere")
    assert cache.home() == Path.home() / "elsewhere"
    monkeypatch.delenv("FEDBEYOND_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/mine")
    assert cache.home() == Path("/var/tmp/mine/fedbeyond")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.home() == Path.home() / ".cache" / "fedbeyond"


def test_many_images_are_listed_and_decoded_with_few_files_open(tmp_path):
    content = (make(tmp_path / "one", each=1, side=(4, 4)) / "a" / "cat" / "0000.png").read_bytes()
    for name in ("cat", "dog"):
        for i in range(750):
            path = tmp_path / "many" / "a" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 32, hard))
    try:
        images = folder(str(tmp_path / "many"), size=4).images["a"][0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert images.shape == (1500, 3, 4, 4) and torch.equal(images[0], images[1499])


def test_a_set_larger_than_memory_is_read_from_disk(tmp_path):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    slot = cache.CacheFile("a", tmp_path / "a.pixels", 2 * memory // (3 * 64 * 64), 64, "")
    with open(slot.path, "wb") as file:
        file.truncate(slot.rows * slot.row)  # takes no room: nothing is written
    view = View([cache.view(slot)], [torch.arange(slot.rows - 5, slot.rows)])
    assert slot.complete and view[torch.tensor([4, 0])].shape == (2, 3, 64, 64)


def test_a_view_reads_as_the_tensor_it_stands_for():
    one, two = torch.arange(40).reshape(10, 4), torch.arange(100, 132).reshape(8, 4)
    rows = torch.tensor([7, 2, 2]), torch.tensor([0, 5])
    want = torch.cat((one[rows[0]], two[rows[1]]))
    both, single = View([one, two], rows), View([one], rows[:1])
    assert both.shape == want.shape and len(both) == 5 and torch.equal(both[:], want)
    assert torch.equal(both[torch.tensor([4, 0, 3])], want[[4, 0, 3]])
    assert torch.equal(single[torch.tensor([1, 0])], one[[2, 7]])
    assert [len(part) for part in both.split(2)] == [2, 2, 1] and torch.equal(torch.cat(list(both.split(2))), want)


def test_a_view_is_measured_as_its_tensor():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    images, labels = torch.randint(256, (700, 3, 2, 2), dtype=torch.uint8), torch.arange(700) % 3
    order = torch.randperm(700)
    want = measure(net, (images[order], labels))
    got = measure(net, (View([images], [order]), labels))
    assert torch.equal(want["loss"], got["loss"]) and torch.equal(want["accuracy"], got["accuracy"])


def loosen(place):
    for path in (place, *place.iterdir()):
        path.chmod(0o755)


def test_only_the_owner_can_read_decoded_images_whatever_the_umask_is(tmp_path, place):
    root = make(tmp_path / "data")
    with umask(0):
        folder(str(root), size=5)
    assert {path.suffix for path in place.iterdir()} == {".pixels", ".json", ".lock"}
    assert not readable_for_others(place)


def test_a_cache_that_others_could_read_is_restricted_when_it_is_used(tmp_path, place):
    root = make(tmp_path / "data")
    folder(str(root), size=5)
    loosen(place)
    folder(str(root), size=5)
    assert not readable_for_others(place)


def test_a_folder_that_holds_other_things_too_keeps_its_mode(tmp_path, place):
    """Somebody may name /tmp as the cache: files of the cache are private there, and nothing else changes."""
    root = make(tmp_path / "data")
    folder(str(root), size=5)
    (place / "others.json").write_text("{}")
    loosen(place)
    folder(str(root), size=5)
    assert readable_for_others(place) == [place, place / "others.json"]


def test_a_picture_of_images_beside_the_cache_is_private_too(tmp_path, place):
    root = make(tmp_path / "data")
    with umask(0):
        check(root, None, picture_in_cache(root))
        assert [path.suffix for path in (place / "pictures").iterdir()] == [".png"] and not readable_for_others(place)
        loosen(place)
        folder(str(root), size=5)
    assert not readable_for_others(place)
