"""Rows of a frozen network are computed once: whoever is beside an image, whoever stops, whoever asks again."""

import pytest
import torch

from fedbeyond.data.storage import features as module
from fedbeyond.data.storage.features import BATCH, RESERVE, Features
from fedbeyond.errors import StorageError
from fedbeyond.images import View
from support.modes import readable_for_others, umask


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path))
    return tmp_path / "features"


class Counting:
    """Two numbers of an image; it counts its batches, and stops before the one that is given."""

    def __init__(self, stop=None):
        self.sizes, self.stop = [], stop

    def __call__(self, x, start):
        if len(self.sizes) == self.stop:
            raise KeyboardInterrupt
        self.sizes.append(len(x))
        return torch.stack((x.mean((1, 2, 3)), x.amax((1, 2, 3))), 1)


def images(number, seed=0):
    return torch.randint(256, (number, 3, 4, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def test_rows_are_computed_once_in_batches_of_one_size():
    x, compute = images(BATCH + 5), Counting()
    rows, labels = Features(compute, (2,), "net").of((x, torch.arange(BATCH + 5)))
    assert compute.sizes == [BATCH, BATCH] and rows.shape == (BATCH + 5, 2) and len(labels) == BATCH + 5
    scaled = x.float() / 127.5 - 1
    assert torch.allclose(rows, torch.stack((scaled.mean((1, 2, 3)), scaled.amax((1, 2, 3))), 1), atol=1e-6)
    again = Counting()
    assert torch.equal(Features(again, (2,), "net").of((x.clone(), labels))[0], rows) and not again.sizes


def test_a_view_keeps_its_rows():
    x, index = images(20), torch.tensor([3, 1, 7])
    features = Features(Counting(), (2,), "net")
    view, _ = features.of((View([x, images(9, 1)], [index, torch.tensor([8])]), torch.arange(4)))
    assert torch.equal(view[:], torch.cat((features.whole(x)[index], features.whole(images(9, 1))[8:])))


@pytest.mark.parametrize("change", ["images", "net", "shape"])
def test_other_images_or_another_network_have_files_of_their_own(change, folder):
    x = images(4)
    first = Features(Counting(), (2,), "net").file(x)
    other = x.clone()
    other[0, 0, 0, 0] ^= 1
    changed = {
        "images": Features(Counting(), (2,), "net").file(other),
        "net": Features(Counting(), (2,), "other").file(x),
        "shape": Features(Counting(), (1, 2), "net").file(x),
    }
    assert first.parent == folder and changed[change] != first
    assert Features(Counting(), (2,), "net").file(x.clone()) == first


def test_what_was_computed_before_an_interruption_is_used(folder, monkeypatch):
    x = images(3 * BATCH)
    with pytest.raises(KeyboardInterrupt):
        Features(Counting(stop=2), (2,), "net").whole(x)
    (partial,) = folder.glob("*.partial")
    assert partial.stat().st_size == 2 * BATCH * 8
    with open(partial, "ab") as file:
        file.write(b"torn")  # a batch that was begun
    rest = Counting()
    rows = Features(rest, (2,), "net").whole(x)
    assert rest.sizes == [BATCH] and not [*folder.glob("*.partial")]
    monkeypatch.setenv("FEDBEYOND_CACHE", str(folder.parent / "elsewhere"))
    assert torch.equal(rows, Features(Counting(), (2,), "net").whole(x))


def test_the_size_is_told_beforehand_and_must_fit(capsys, monkeypatch, folder):
    x, y = images(10), torch.zeros(10)
    features = Features(Counting(), (2,), "net")
    split = View([x], [torch.arange(5)]), y
    assert features.missing([split, (x, y)]) == 10 * 8
    features.require_space([split])
    assert f"computing features once: 10 images, 80 bytes into {folder}" in capsys.readouterr().err
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: type("", (), {"free": RESERVE + 100})())
    features.require_space([split], besides=20)
    capsys.readouterr()
    with pytest.raises(StorageError, match=r"need 101 bytes in .* 268 MB must stay free; .*cache=false"):
        features.require_space([split], besides=21)
    features.of(split)
    features.require_space([split])  # nothing is missing
    assert capsys.readouterr().err == ""


def test_only_the_owner_can_read_rows_whatever_the_umask_is(folder, monkeypatch):
    cache = folder.parent / "new"
    monkeypatch.setenv("FEDBEYOND_CACHE", str(cache))
    features = Features(Counting(stop=1), (2,), "net")
    with umask(0):
        features.require_space([(images(2 * BATCH), torch.zeros(2 * BATCH))])
        with pytest.raises(KeyboardInterrupt):
            features.whole(images(2 * BATCH))
        assert [*cache.glob("features/*.partial")] and not readable_for_others(cache)
        Features(Counting(), (2,), "net").whole(images(2 * BATCH))
    assert [*cache.glob("features/*.rows")] and not readable_for_others(cache)


def test_rows_that_others_could_read_are_restricted_when_some_are_computed(folder):
    Features(Counting(), (2,), "net").whole(images(4))
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    Features(Counting(), (2,), "net").whole(images(5))
    assert not readable_for_others(folder.parent)
