"""What sites see: drawn data, folders, splits, samplers."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedbeyond.batch import balanced, shuffled
from fedbeyond.data.check.picture import draw
from fedbeyond.data.datasets._folder import folder, list_folder
from fedbeyond.data.datasets._styles import styles
from fedbeyond.data.partition.assignment import build_splits
from fedbeyond.data.partition.splits import cut, divide, split_rows
from fedbeyond.errors import ConfigError, DataError
from fedbeyond.site import derive


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def drawn():
    return styles(share=0.1)


def test_styles_has_seven_classes_in_four_domains_of_pacs_proportions(drawn):
    assert drawn.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    sizes = {name: len(labels) for name, (_, labels) in drawn.images.items()}
    pacs = {"photo": 1670, "painting": 2048, "cartoon": 2344, "sketch": 3929}
    for name, size in sizes.items():
        assert size / sum(sizes.values()) == pytest.approx(pacs[name] / 9991, abs=0.01)
    for images, labels in drawn.images.values():
        assert images.dtype == torch.uint8 and images.shape[1:] == (3, 32, 32)
        assert set(labels.tolist()) == set(range(7))


def test_styles_is_the_same_every_time_and_another_with_another_seed(drawn):
    again, other = styles(share=0.1), styles(share=0.1, seed=1)
    for name, (images, labels) in drawn.images.items():
        assert torch.equal(images, again.images[name][0]) and torch.equal(labels, again.images[name][1])
        assert not torch.equal(images, other.images[name][0])


def test_styles_is_the_set_that_the_committed_numbers_were_measured_on(drawn):
    digest = hashlib.sha256()
    for images, labels in drawn.images.values():
        digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == "156b3524f3a4c2eb"


def test_no_two_images_of_styles_are_equal(drawn):
    for images, _ in drawn.images.values():
        assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_styles_comes_in_any_size():
    assert styles(size=48, share=0.02).images["photo"][0].shape[2:] == (48, 48)


def test_a_picture_of_the_data_can_be_drawn(drawn, tmp_path):
    draw(drawn, tmp_path / "new" / "grid.png")
    with Image.open(tmp_path / "new" / "grid.png") as picture:
        assert picture.width > 1000 and len(picture.getcolors(10**7)) > 100


def make_folder(root, domains=("a", "b"), classes=("cat", "dog"), each=3):
    for shade, domain in enumerate(domains):
        for tint, name in enumerate(classes):
            (root / domain / name).mkdir(parents=True)
            for i in range(each):
                Image.new("RGB", (9, 7), (shade * 100, tint * 100, i)).save(root / domain / name / f"{i}.png")
    return root


def test_a_folder_of_folders_is_read_by_name(tmp_path):
    read = folder(str(make_folder(tmp_path)), size=4)
    assert read.classes == ("cat", "dog") and list(read.images) == ["a", "b"]
    images, labels = read.images["b"]
    assert labels.tolist() == [0, 0, 0, 1, 1, 1] and images.shape == (6, 3, 4, 4)
    assert images[4, :, 0, 0].tolist() == [100, 100, 1]


def test_hidden_files_and_folders_that_are_called_as_images_are_left_alone(tmp_path):
    root = make_folder(tmp_path)
    place = root / "a" / "cat"
    (place / "._0.png").write_bytes(b"what macOS notes")
    (place / "album.png").mkdir()
    (place / ".thumbs").mkdir()
    (place / ".thumbs" / "0.png").write_bytes(b"what viewers draw")
    (root / "__MACOSX" / "a").mkdir(parents=True)
    listed = list_folder(str(root)).domains
    assert list(listed) == ["a", "b"]
    assert listed["a"].pixels.names == tuple(f"a/{name}/{i}.png" for name in ("cat", "dog") for i in range(3))


def test_a_class_can_be_left_out(tmp_path):
    assert folder(str(make_folder(tmp_path)), size=4, classes=("dog",)).images["a"][1].tolist() == [0, 0, 0]


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        folder(str(tmp_path / "none"))
    with pytest.raises(DataError, match="needs a path"):
        folder()
    root = make_folder(tmp_path)
    (root / "b" / "dog" / "1.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"1\.png: cannot be read"):
        folder(str(root), size=4)
    for file in (root / "b" / "dog").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="b: no image of class dog"):
        folder(str(root), size=4)
    assert folder(str(root), size=4, partial=True).images["b"][1].tolist() == [0, 0, 0]
    (root / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images"):
        folder(str(root), size=4, partial=True)


def test_the_target_is_whole_and_in_no_site(drawn):
    sites, test = build_splits(drawn, divide(drawn, "photo", seed=0))
    assert sorted(sites) == ["cartoon", "painting", "sketch"]
    assert torch.equal(test["photo"][0][:], drawn.images["photo"][0])


def test_several_domains_can_be_left_out_at_once(drawn):
    divided = divide(drawn, "photo+sketch", seed=0)
    assert sorted(divided.clients) == ["cartoon", "painting"] and list(divided.tests) == ["photo", "sketch"]
    with pytest.raises(ConfigError, match="leaves no domain to train on"):
        divide(drawn, "cartoon+painting+photo+sketch", seed=0)


LABELS = np.arange(600) % 6


@pytest.mark.parametrize("skew", [None, 0.3, 100.0])
def test_clients_of_a_domain_share_its_images_out_without_loss(skew):
    parts = split_rows(LABELS, 10, skew, "photo", seed=0)
    assert list(parts) == [f"photo-{i}" for i in range(10)]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(600))
    again, other = split_rows(LABELS, 10, skew, "photo", seed=0), split_rows(LABELS, 10, skew, "photo", seed=1)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)
    assert any(not np.array_equal(parts[name], other[name]) for name in parts)


def test_labels_are_the_more_uneven_the_smaller_the_skews_number():
    def unevenness(skew):
        parts = split_rows(LABELS, 10, skew, "photo", seed=0)
        return float(np.std([np.bincount(LABELS[rows], minlength=6) for rows in parts.values()]))

    assert unevenness(None) < 1 < unevenness(10.0) < unevenness(0.3)


def test_too_few_images_for_so_many_clients_is_told():
    with pytest.raises(DataError, match=r"10 images: too few for 5 clients .* lower train.clients_per_domain"):
        split_rows(LABELS[:10], 5, 0.1, "photo", seed=0)


def test_training_and_validation_share_nothing_and_lose_nothing():
    train, val = cut(np.arange(50), 0.1, "a", seed=0)
    assert sorted([*train, *val]) == list(range(50)) and len(val) == 5
    assert not np.array_equal(train, cut(np.arange(50), 0.1, "a", seed=1)[0])


def test_images_are_cut_as_they_were_when_the_committed_numbers_were_measured():
    train, val = cut(np.arange(20), 0.1, "photo", seed=0)
    order = torch.randperm(20, generator=stream(derive(0, "split", "photo"))).tolist()
    assert val.tolist() == order[:2] and train.tolist() == order[2:]


def test_a_split_that_cannot_be_made_is_told(drawn):
    with pytest.raises(ConfigError, match=r"no target given; choose .* cartoon, painting, photo, sketch"):
        divide(drawn, None, 0)
    with pytest.raises(ConfigError, match="no domain 'fresco'"):
        divide(drawn, "fresco", 0)
    with pytest.raises(DataError, match="one to leave out and one to train on"):
        divide(replace(drawn, images={"photo": drawn.images["photo"]}), "photo", 0)
    with pytest.raises(DataError, match="'a' has 1 images: too few"):
        cut(np.zeros(1), 0.1, "a", 0)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_shuffled_shows_every_image_once_an_epoch(held, batch_size, epochs):
    batches = list(shuffled(torch.zeros(held), epochs, batch_size, stream()))
    seen = torch.cat(batches).bincount(minlength=held)
    left_out = epochs if held % batch_size == 1 and held > 1 and batch_size > 1 else 0  # single images at the end
    assert seen.sum() == epochs * held - left_out and seen.max() <= epochs
    assert all(len(batch) > 1 for batch in batches) or batch_size == 1 or held == 1


@given(st.integers(1, 60), st.integers(1, 6), st.integers(2, 9), st.integers(1, 3))
def test_a_budget_is_the_same_number_of_full_batches_everywhere(held, budget, batch_size, epochs):
    batches = list(balanced(budget)(torch.zeros(held), epochs, batch_size, stream()))
    assert [len(batch) for batch in batches] == [batch_size] * budget
    times = torch.cat(batches).bincount(minlength=held)
    assert times.max() - times.min() <= 1  # no image more than once more than another


def test_a_large_site_shows_all_it_has_in_the_course_of_rounds():
    seen = {i for r in range(40) for batch in balanced(2)(torch.zeros(50), 1, 8, stream(r)) for i in batch.tolist()}
    assert seen == set(range(50))
    fixed = {
        i for r in range(40) for b in balanced(2, fresh=False)(torch.zeros(50), 1, 8, stream(r)) for i in b.tolist()
    }
    assert fixed == set(range(16))  # what the authors' code does: the rest is never seen
