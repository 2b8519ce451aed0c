"""Protocols: the field's own parts, mixed domains, groups that stay together, and splits as files."""

import json
from dataclasses import fields, replace
from itertools import combinations

import numpy as np
import pytest
import torch

from fedbeyond.data.partition import split_file
from fedbeyond.data.partition.assignment import build_splits, count_rows, local_tests
from fedbeyond.data.partition.mixing import nearest
from fedbeyond.data.partition.splits import Rules, divide, majority, split_rows
from fedbeyond.errors import ConfigError, DataError, StorageError
from fedbeyond.experiment import build, plan, registry, run_folder, runner
from fedbeyond.experiment.config import Bench, Config, Train
from fedbeyond.images import Dataset, Notes

SIZES = {"east": 60, "north": 90, "south": 120, "west": 40}
NAMES = {name: tuple(f"{i % 3}/{i:03}.png" for i in range(size)) for name, size in SIZES.items()}


def data(named=True, groups=True, folds=("train", "val", "test"), sizes=SIZES) -> Dataset:
    """Grey images whose shade is their row, three classes in turn, patients of three images, the field's parts."""
    images, notes = {}, {}
    for name, size in sizes.items():
        row = np.arange(size)
        shades = torch.from_numpy(row.astype(np.uint8))[:, None, None, None].expand(-1, 3, 4, 4)
        images[name] = shades.contiguous(), torch.from_numpy(row % 3)
        parts = {"train": row[row % 10 < 6], "val": row[row % 10 == 6], "test": row[row % 10 > 6]}
        patients = tuple(f"patient {i // 3}" for i in row) if groups else ()
        files = tuple(f"{i % 3}/{i:03}.png" for i in row) if named else ()
        notes[name] = Notes(files, {part: parts[part] for part in folds}, patients)
    return Dataset(("red", "green", "blue"), images, notes)


def rows(division):
    """Every (domain, row) that clients hold."""
    held = []
    for holding in division.clients.values():
        for part in (holding.train, holding.val):
            held += [(domain, int(row)) for domain, some in part.items() for row in some]
    return held


def everything(*domains):
    return sorted((domain, row) for domain in domains for row in range(SIZES[domain]))


SOURCES = ("east", "north", "south")


def test_the_fields_own_parts_are_taken_as_they_are():
    divided = divide(data(), "west", 0, Rules(validation="official", target_part="test"))
    east = divided.clients["east"]
    assert east.train["east"].tolist() == [i for i in range(60) if i % 10 < 6]
    assert east.val["east"].tolist() == [6, 16, 26, 36, 46, 56]
    assert divided.tests["west"].tolist() == [i for i in range(40) if i % 10 > 6]
    sites, tests = build_splits(data(), divided)
    assert sites["east"]["val"][0][:][:, 0, 0, 0].tolist() == [6, 16, 26, 36, 46, 56]
    assert tests["west"][1].tolist() == [i % 3 for i in range(40) if i % 10 > 6]


def test_the_fields_own_parts_are_shared_out_among_clients():
    divided = divide(data(), "west", 0, Rules(validation="official", clients=2))
    assert len(divided.clients) == 6 and sorted(rows(divided)) == [
        (domain, row) for domain, row in everything(*SOURCES) if row % 10 <= 6
    ]
    assert all(set(h.val[h.domain] % 10) == {6} for h in divided.clients.values())


def test_parts_that_the_field_does_not_have_are_told():
    with pytest.raises(DataError, match=r"'east' has no official 'val' part: its parts are train, test; use a"):
        divide(data(folds=("train", "test")), "west", 0, Rules(validation="official"))
    with pytest.raises(
        DataError, match=r"'west' has no official 'test' part: it has no official split; .*target_part = 'whole'"
    ):
        divide(data(folds=()), "west", 0, Rules(target_part="test"))
    few = data(sizes={"east": 16, "west": 16})
    with pytest.raises(DataError, match=r"'east-\d' has \d images of the official 'train' part and 0 of 'val'"):
        divide(few, "west", 0, Rules(validation="official", clients=2))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("clients", [1, 2])
def test_mixing_loses_and_doubles_nothing_and_keeps_names_and_sizes(share, clients):
    plain = divide(data(), "west", 0, Rules(clients=clients))
    mixed, again = (divide(data(), "west", 0, Rules(clients=clients, mixing=share)) for _ in range(2))
    assert sorted(rows(mixed)) == everything(*SOURCES) and rows(mixed) == rows(again)
    assert rows(mixed) != rows(divide(data(), "west", 1, Rules(clients=clients, mixing=share)))
    assert list(plain.clients) == list(mixed.clients)
    for name, holding in mixed.clients.items():
        before = plain.clients[name]
        assert count_rows(holding.train) == count_rows(before.train)
        assert count_rows(holding.val) == count_rows(before.val)
        assert holding.domain == before.domain


def test_the_dial_goes_from_one_domain_a_client_to_an_even_mix():
    def own(share):
        """Of north's 90 images, how many are still its own domain's; and all its domains."""
        held = divide(data(), "west", 0, Rules(mixing=share)).clients["north"]
        many = {d: len(held.train.get(d, ())) + len(held.val.get(d, ())) for d in SOURCES}
        assert sum(many.values()) == 90
        return many

    assert own(0.0) == {"east": 0, "north": 90, "south": 0}
    assert own(1.0) == {"east": 20, "north": 30, "south": 40}  # as 60 : 90 : 120
    assert own(0.5) == {"east": 10, "north": 60, "south": 20}  # half of its 90 swapped: a third of them came back


def test_a_mixed_client_reads_images_of_all_its_domains():
    divided = divide(data(), "west", 0, Rules(mixing=1.0))
    sites, _ = build_splits(data(), divided)
    images, labels = sites["south"]["train"]
    want = [row for some in divided.clients["south"].train.values() for row in some]
    assert images[:][:, 1, 2, 3].tolist() == want and labels.tolist() == [row % 3 for row in want]


@pytest.mark.parametrize(
    "rules", [Rules(), Rules(clients=3, skew=1.0), Rules(mixing=0.4), Rules(clients=2, mixing=1.0)]
)
def test_groups_stay_together(rules):
    divided = divide(data(), "west", 0, rules._replace(disjoint="groups", validation=0.2))
    sides = [part for holding in divided.clients.values() for part in (holding.train, holding.val)]
    groups = [{(domain, row // 3) for domain, some in side.items() for row in some} for side in sides]
    assert all(one.isdisjoint(other) for one, other in combinations(groups, 2))
    assert sorted(rows(divided)) == everything(*SOURCES)
    for held in divided.clients.values():
        wanted = 0.2 * (count_rows(held.train) + count_rows(held.val))
        size = count_rows(held.val)
        assert abs(size - wanted) <= 2 or size == 3  # a group is three: no choice comes nearer


def test_groups_that_nobody_knows_or_that_cannot_be_cut_are_told():
    with pytest.raises(DataError, match=r"'east' has no groups; name them, as in table\(groups=patient\), folder.*npz"):
        divide(data(groups=False), "west", 0, Rules(disjoint="groups"))
    with pytest.raises(DataError, match=r"'east' has 3 images in 1 groups: too few to keep 10% for validation"):
        divide(data(sizes={"east": 3, "west": 9}), "west", 0, Rules(disjoint="groups"))


def test_small_steps_of_the_arithmetic():
    assert majority(np.array([0, 0, 0, 1, 1, 2]), np.array([2, 1, 2, 0, 0, 1])).tolist() == [2, 0, 1]
    assert [nearest(np.array([3, 3, 3]), wanted) for wanted in (0, 1, 2, 4.4, 4.6, 99)] == [0, 0, 1, 1, 2, 3]
    assert nearest(np.array([50, 1]), 2, least=1) == 1
    parts = split_rows(np.zeros(12, int), 2, None, "a", 0, np.repeat([5, 6, 7, 8], 3))
    assert sorted(len(some) for some in parts.values()) == [6, 6]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "rules", [Rules(), Rules("official", 2, target_part="test"), Rules(mixing=0.5, disjoint="groups")]
)
def test_a_split_is_the_same_after_it_was_saved(rules, named, tmp_path):
    domains, path = data(named), tmp_path / "new" / "split.json"
    divided = divide(domains, "west", 3, rules)
    split_file.save(path, divided, domains, "west")
    back = split_file.load(path, data(named), "west")
    assert rows(back) == rows(divided) and list(back.clients) == list(divided.clients)
    assert [h.domain for h in back.clients.values()] == [h.domain for h in divided.clients.values()]
    assert {d: r.tolist() for d, r in back.tests.items()} == {d: r.tolist() for d, r in divided.tests.items()}
    told = json.loads(path.read_text())
    assert (told["unseen"] == {"west": "all"}) is (rules.target_part == "whole")


def test_names_find_their_images_in_another_order(tmp_path):
    domains = data(groups=False, folds=())
    split_file.save(tmp_path / "s", divide(domains, "west", 0), domains, "west")
    order = np.random.default_rng(0).permutation(60)
    images, labels = domains.images["east"]
    shuffled = Notes(tuple(NAMES["east"][i] for i in order))
    other = Dataset(
        domains.classes,
        domains.images | {"east": (images[order], labels[order])},
        dict(domains.notes) | {"east": shuffled},
    )
    loaded = ((d, split_file.load(tmp_path / "s", d, "west")) for d in (domains, other))
    want, got = (build_splits(d, partition)[0]["east"]["train"] for d, partition in loaded)
    assert torch.equal(want[0][:], got[0][:]) and torch.equal(want[1], got[1])


def changed(domains, domain, keep=None, names=None, labels=None, groups=None):
    images, old = domains.images[domain]
    note = domains.notes[domain]
    keep = np.arange(len(old)) if keep is None else keep
    told = names or (tuple(note.names[i] for i in keep) if note.names else ())
    split = images[keep], (old if labels is None else labels)[keep]
    patients = groups or tuple(note.groups[i] for i in keep if note.groups)
    noted = Notes(told, groups=patients, digest=note.digest)
    return replace(domains, images=domains.images | {domain: split}, notes=dict(domains.notes) | {domain: noted})


def test_data_that_differ_from_the_splits_are_refused_and_the_difference_is_said(tmp_path):
    domains, path = data(), tmp_path / "split.json"
    split_file.save(path, divide(domains, "west", 0), domains, "west")

    def refused(other, message, target="west", error=DataError):
        with pytest.raises(error, match=message):
            split_file.load(path, other, target)

    refused(
        changed(domains, "east", np.arange(1, 60)),
        r"other data: 'east' lacks 1 of the split's images, such as 0/000.png",
    )
    refused(
        changed(domains, "west", np.arange(1, 40)),
        r"'west' has 40 images in the split file and 39 in the data; use those data, or make",
    )
    labels = domains.images["north"][1].flip(0)
    refused(
        changed(domains, "north", labels=labels),
        "'north' has the same number of images, but other names, labels, groups or cont",
    )
    split_file.load(path, changed(domains, "north"), "west")
    refused(changed(domains, "north", groups=("patient 0",) * 90), "'north' has the same number of images, but other")
    refused(data(groups=False), "has the same number of images, but other names, labels, groups or contents")
    refused(replace(domains, classes=("red", "green", "pink")), "only one of them has the classes blue, pink")
    fewer = {name: split for name, split in domains.images.items() if name != "south"}
    refused(replace(domains, images=fewer), "domain 'south' is only in the split file")
    refused(domains, r"split.json was made for target west, this run has target east; choose", "east", ConfigError)
    bare = data(named=False)
    split_file.save(path, divide(bare, "west", 0), bare, "west")
    note = {"east": bare.notes["east"]._replace(digest="other contents")}
    refused(replace(bare, notes={**bare.notes, **note}), "'east' has the same number of images, but")


def test_a_file_that_is_no_split_is_told(tmp_path):
    path, domains = tmp_path / "split.json", data()
    with pytest.raises(
        ConfigError, match=r"cannot read the split file .*: No such file .*; make it with fedbeyond data split"
    ):
        split_file.load(path, domains, "west")
    for text in ("{", "[]", '{"format": "other"}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"is not a split file"):
            split_file.load(path, domains, "west")
    split_file.save(path, divide(domains, "west", 0), domains, "west")
    told = json.loads(path.read_text())
    for change, message in (
        (lambda held: held["val"]["east"].append(held["train"]["east"][0]), "some images of 'east' are used twice"),
        (lambda held: held["val"]["east"].clear(), r"'east' has \d+ training and 0 validation images; give it both"),
        (lambda held: held["val"].update(moon=["x"]), "names 'moon', which the data do not have"),
        (lambda held: held["val"].update(west=["0/000.png"]), "'east' has images of 'west', which must be unseen"),
    ):
        broken = json.loads(json.dumps(told))
        change(broken["clients"]["east"])
        path.write_text(json.dumps(broken))
        with pytest.raises(DataError, match=message):
            split_file.load(path, domains, "west")
    for unseen in ({}, {"west": []}, {"west": "all", "east": "all"}):
        path.write_text(json.dumps({**told, "unseen": unseen}))
        with pytest.raises(DataError, match="its target is west, but its unseen images are not those of west"):
            split_file.load(path, domains, "west")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        split_file.save(tmp_path / "file" / "split.json", divide(domains, "west", 0), domains, "west")


@pytest.fixture
def toy(monkeypatch):
    """The data above by name, and a run on them."""
    monkeypatch.setitem(registry.REGISTRY["datasets"], "compass", data)
    build._dataset.cache_clear()
    yield Config(data="compass", target="west", network="convnet(width=2)", train=Train(rounds=1, batch_size=16))
    build._dataset.cache_clear()


def with_train(config, **keys):
    return Config(
        **{
            **{k: getattr(config, k) for k in ("data", "target", "network", "seed")},
            "train": Train(rounds=1, batch_size=16, **keys),
        }
    )


def test_a_run_from_a_saved_split_gives_the_same_numbers(toy, tmp_path):
    path = tmp_path / "{target}-{seed}.json"
    ruled = with_train(toy, clients_per_domain=2, mixing=0.3)
    told = list(plan.write_splits(ruled, str(path)))
    assert told == [f"{tmp_path / 'west-0.json'}: 6 clients, west unseen; use it with --set train.split={path}"]
    filed = with_train(toy, split=str(path))
    lines = [next(runner.run(runner.prepare(c), tmp_path / str(i))) for i, c in enumerate((ruled, filed))]
    assert lines[0]["scores"] == lines[1]["scores"] and lines[0]["scores"]["east-0"]["domain"] == "east"
    assert filed.identity()["train"]["split"].startswith(f"{path} ") and lines[0]["setting"] != lines[1]["setting"]
    (tmp_path / "west-0.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds another run: train\.split is"):
        run_folder.ensure_same_run(tmp_path / "1", filed)


def test_splits_of_a_grid_need_names_that_differ(toy, tmp_path):
    grid = Config(data="compass", bench=Bench(targets=("west", "east+north"), seeds=(0, 1)))
    with pytest.raises(ConfigError, match=r"4 split files would get the same name; .*\{target\}-\{seed"):
        list(plan.write_splits(grid, str(tmp_path / "split.json")))
    assert len(list(plan.write_splits(grid, str(tmp_path / "{target}-{seed}.json")))) == 4
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "east+north-0.json"


def test_check_shows_the_clients_as_they_will_be(toy, tmp_path):
    def told(**keys):
        return plan.plan(with_train(toy, **keys))

    assert "  east                 54 / 6   or unseen, all 60   majority class " in told()
    assert "  west             unseen, 12 of 40   majority class " in told(target_part="test")
    assert "  east-1               27 / 3   majority class " in told(clients_per_domain=2)
    assert "clients (training / validation images) with west unseen, seed 0:\n" in told(mixing=1)
    assert "of east " in told(mixing=1.0) and "  east                 36 / 6   majority class " in told(
        validation="official"
    )
    list(plan.write_splits(with_train(toy, clients_per_domain=2), str(tmp_path / "s.json")))
    assert "  south-0 " in told(split=str(tmp_path / "s.json"))


def test_settings_that_contradict_each_other_are_told():
    for keys, message in (
        (
            {"split": "s.json", "mixing": 0.5, "validation": 0.2},
            "'s.json' defines the partition; leave out validation, mix",
        ),
        ({"disjoint": "groups", "validation": "official"}, "the official split cannot be changed"),
        ({"validation": "fild"}, "a share between 0 and 1, or 'official'"),
        ({"mixing": 1.5}, "less than or equal to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Train(**keys)


def test_every_key_of_training_identifies_a_run():
    keys = {field.name for field in fields(Train)}
    assert set(Config(train=Train(part="head")).identity()["train"]) == keys
    assert set(Config().identity()["train"]) == keys - {"part"}  # absent if all is trained, as in runs before this key
    assert Config().setting() == Config(train=Train(mixing=0.0)).setting() != Config(train=Train(mixing=0.5)).setting()


def test_a_test_of_its_own_is_kept_apart_and_none_by_default():
    plain, none = divide(data(), "west", 0), divide(data(), "west", 0, Rules(test=0.0))
    divided = divide(data(), "west", 0, Rules(test=0.2))
    assert rows(plain) == rows(none) and not any(holding.test for holding in plain.clients.values())
    for name, size in (("east", 60), ("north", 90), ("south", 120)):
        holding = divided.clients[name]
        parts = [holding.train[name], holding.val[name], holding.test[name]]
        assert [len(part) for part in parts] == [size * 7 // 10, size // 10, size // 5]  # shares are of the whole
        assert sorted(np.concatenate(parts)) == list(range(size))
    assert rows(divided) == rows(divide(data(), "west", 0, Rules(test=0.2)))
    other = divide(data(), "west", 1, Rules(test=0.2)).clients["east"]
    assert set(other.test["east"]) != set(divided.clients["east"].test["east"])
    tests = local_tests(data(), divided)
    images, labels = tests["east"]
    assert images[:][:, 0, 0, 0].tolist() == divided.clients["east"].test["east"].tolist()
    assert labels.tolist() == [row % 3 for row in divided.clients["east"].test["east"]]
    sites, _ = build_splits(data(), divided)
    assert all(set(splits) == {"train", "val"} for splits in sites.values())  # a site never sees it


def test_the_fields_own_test_part_is_kept_apart():
    for validation in ("official", 0.1):
        divided = divide(data(), "west", 0, Rules(validation=validation, test="official", clients=2))
        for holding in divided.clients.values():
            assert all(row % 10 > 6 for row in holding.test[holding.domain])
            assert all(row % 10 <= 6 for part in (holding.train, holding.val) for row in part[holding.domain])
        held = [(h.domain, int(row)) for h in divided.clients.values() for row in h.test[h.domain]]
        assert sorted(held) == [(domain, row) for domain, row in everything(*SOURCES) if row % 10 > 6]
    with pytest.raises(
        DataError, match=r"'east' has no official 'test' part: .* use a share, such as train.test = 0.1"
    ):
        divide(data(folds=("train", "val")), "west", 0, Rules(test="official"))


def test_patients_stay_on_one_side_of_a_test_too():
    divided = divide(data(), "west", 0, Rules(test=0.2, disjoint="groups"))
    for name in SOURCES:
        holding = divided.clients[name]
        sides = [{row // 3 for row in part[name]} for part in (holding.train, holding.val, holding.test)]
        assert all(sides) and all(not one & other for one, other in combinations(sides, 2))


def test_a_test_is_saved_with_the_split_and_read_again(tmp_path):
    divided = divide(data(), "west", 0, Rules(test=0.2))
    split_file.save(tmp_path / "s.json", divided, data(), "west")
    again = split_file.load(tmp_path / "s.json", data(), "west")
    for name, holding in divided.clients.items():
        assert again.clients[name].test[name].tolist() == holding.test[name].tolist()
    told = json.loads((tmp_path / "s.json").read_text())
    told["clients"]["east"]["test"]["east"][0] = told["clients"]["east"]["train"]["east"][0]
    (tmp_path / "s.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match="used twice"):
        split_file.load(tmp_path / "s.json", data(), "west")
    told["clients"]["east"]["test"] = {"west": told["clients"]["east"]["test"]["east"][1:]}
    (tmp_path / "s.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=r"client 'east' has images of 'west', which must be unseen|lacks"):
        split_file.load(tmp_path / "s.json", data(), "west")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"validation": 0.5, "test": 0.5}, "take 100% of the images; leave some"),
        ({"validation": "official", "test": 0.1}, "set test = 'official'"),
        ({"test": "official", "disjoint": "groups"}, "leave out disjoint"),
        ({"split": "s.json", "test": 0.1}, "leave out test"),
        ({"test": -0.1}, "a share between 0 and 1"),
    ],
)
def test_tests_that_cannot_be_are_told(given, message):
    with pytest.raises(ValueError, match=message):
        Train(**given)
