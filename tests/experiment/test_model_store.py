"""The store: what a server puts there outlives the process, stays out of checkpoints, and goes when nobody can ask."""

import weakref
from dataclasses import replace

import pytest
import torch

from experiment.test_runner import contents, finish
from fedbeyond import _io, tree
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import StorageError
from fedbeyond.experiment import checkpoint, results, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.model_store import FileStore
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.optimizers import sgd
from fedbeyond.server import ModelStore, Round, entry_name
from fedbeyond.testing import toy
from fedbeyond.wrappers.sha import OWNER, sha, stored_names
from support.asserts import assert_equal

LIVELY = sha(fedavg(optimizer=sgd(0.5, momentum=0.9)), history=2)  # scores go up and down


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    return ModelStore() if request.param == "memory" else ModelStore(FileStore(tmp_path / "store"))


def leaf(number):
    return {"w": torch.tensor([float(number)]), "inner": {"count": torch.tensor(number)}}


def test_what_was_put_there_is_got_back_whatever_it_is_called(store, tmp_path):
    names = ["east/000001", "east-000001", "East/000001", "../east", ".", "a b", "", "东" * 90, "x" * 300, "x" * 301]
    for number, name in enumerate(names):
        store.put("one", name, leaf(number))
        store.put("other", name, leaf(-number))
    for number, name in enumerate(names):
        assert_equal(tree.flatten(store.get("one", name)), tree.flatten(leaf(number)))
        assert_equal(tree.flatten(store.get("other", name)), tree.flatten(leaf(-number)))
    assert len(store.entries) == 2 * len(names) == len({entry_name("one", name).lower() for name in names}) * 2
    assert {path.name for path in tmp_path.iterdir()} <= {"store"}


def test_what_is_put_there_again_takes_the_place_of_what_was(store):
    store.put("one", "a", leaf(1))
    store.put("one", "a", leaf(2))
    assert store.get("one", "a")["w"].item() == 2 and len(store.entries) == 1


def test_what_neither_this_round_nor_the_two_before_named_goes(store):
    """Rounds name a and b, b and c, c and d, d, ...: a run may go on from the state before the last but two."""
    for name in "abcd":
        store.put("one", name, leaf(1))
    store.put("other", "a", leaf(1))
    for said, left in (("ab", "ab"), ("bc", "abc"), ("cd", "abcd"), ("d", "bcd"), ("d", "cd"), ("", "d")):
        for name in said:
            store.put("one", name, leaf(1))
        store.keep("one", said)
        assert set(store.entries) == {entry_name("one", name) for name in left} | {entry_name("other", "a")}


def test_what_is_not_there_is_told_with_what_to_do(tmp_path):
    with pytest.raises(StorageError, match=r"no entry 'east/000001' of sha; pass the same store to all rounds"):
        ModelStore().get("sha", "east/000001")
    store = ModelStore(FileStore(tmp_path / "store"))
    store.put("sha", "east/000001", leaf(1))
    (file,) = (tmp_path / "store").iterdir()
    assert file.name.startswith("sha.east-000001-")
    for spoil in (lambda: file.write_bytes(b"rubbish"), file.unlink):
        spoil()
        remedy = f"restore it from a backup, or delete {tmp_path} and"
        with pytest.raises(StorageError, match=rf"{file} (is damaged|cannot be read) .* {remedy}"):
            store.get("sha", "east/000001")


def test_a_round_has_a_shelf_of_its_own_unless_it_is_given_one():
    first, second = (Round(0, 1, ("east",), ("east",)) for _ in range(2))
    first.store.put("one", "a", leaf(1))
    assert not second.store.entries


def rounds(store, numbers, state=None, federation=None):
    """The states of a lively run on the toy sites, after each round."""
    federation = federation or Simulator(LIVELY.client, toy.sites(LIVELY))
    gate, state = toy.gate(LIVELY), state or start(LIVELY, federation.clients, toy.shared(LIVELY))
    for number in numbers:
        now = Round(number, 9, federation.clients, federation.clients, store=store)
        state, _ = play(LIVELY, state, now, federation, gate)
        yield state


def test_a_run_has_on_disk_what_its_last_four_states_name_and_no_more(tmp_path):
    store, names = ModelStore(FileStore(tmp_path / "store")), [set(), set(), set()]
    for state in rounds(store, range(9)):
        names.append({entry_name(OWNER, name) for name in stored_names(state["server"]["sha_history"])})
        assert set(store.entries) == names[-4] | names[-3] | names[-2] | names[-1]
    assert set.union(*names) > set(store.entries)  # some have gone
    assert all(path.name.endswith(".safetensors") for path in (tmp_path / "store").iterdir())


def test_on_disk_and_in_memory_a_run_is_the_same_to_the_bit(tmp_path):
    ends = [list(rounds(store, range(5)))[-1] for store in (ModelStore(), ModelStore(FileStore(tmp_path / "store")))]
    assert_equal(*map(tree.flatten, ends))


def test_models_are_taken_from_the_shelf_one_at_a_time():
    alive, most = weakref.WeakSet(), 0

    class Seen(dict):
        """A dict that can be referred to weakly."""

    def taken(number):
        nonlocal most
        node = Seen(leaf(number))
        alive.add(node["w"])
        most = max(most, len(alive))
        return node

    merged = tree.mean((taken(number) for number in range(7)), [1.0] * 7)
    assert merged["w"].item() == pytest.approx(3) and merged["inner"]["count"].item() == 6
    assert most == 2  # the one that was added last, and the next


# whole runs, in a folder


@pytest.fixture
def config(small):
    return Config(method="fedavg+sha(history=2)", train=Train(rounds=5, batch_size=8), **small)


def test_a_checkpoint_does_not_grow_with_the_history(config, tmp_path):
    """One score, four bytes, for each model on the store; the models of three sites in six rounds would be 18."""
    sizes, shelves = {}, {}
    for history in (0, 1, 6):
        one = replace(config, method=f"fedavg+sha(history={history})", train=Train(rounds=7, batch_size=8))
        lines = runner.run(runner.prepare(one), tmp_path / str(history))
        for _ in range(6):
            next(lines)
        lines.close()
        path = tmp_path / str(history) / "checkpoint.safetensors"
        state = checkpoint.load(path)[0]["state"]
        sizes[history] = tree.size(state)
        shelves[history] = [file.stat().st_size for file in (tmp_path / str(history) / "models").glob("*")]
        scores = tree.leaves(state["server"]["sha_history"])
        assert sizes[history] == sizes[0] + 4 * sum(score.numel() for score in scores)
        model = tree.size(state["server"]["model"])
        assert path.stat().st_size < 2 * model and all(size > model for size in shelves[history])
    assert not shelves[0] and 3 <= len(shelves[1]) < len(shelves[6]) == 18


def test_when_a_run_is_over_its_shelf_is_gone(config, tmp_path):
    lines = runner.run(runner.prepare(config), tmp_path)
    for _ in range(5):
        next(lines)
        assert (tmp_path / "models").is_dir()
    assert not list(lines) and not (tmp_path / "models").exists()
    finish(replace(config, method="fedavg"), tmp_path / "other")
    assert not (tmp_path / "other" / "models").exists()


def test_a_run_that_begins_again_is_not_confused_by_an_old_shelf(config, tmp_path):
    finish(config, tmp_path / "whole")
    folder = tmp_path / "again"
    lines = runner.run(runner.prepare(replace(config, seed=5)), folder)
    for _ in range(3):
        next(lines)
    lines.close()
    (folder / "checkpoint.safetensors").unlink()
    old = {path.name for path in (folder / "models").iterdir()}
    lines = runner.run(runner.prepare(config), folder)
    next(lines)
    assert len([*(folder / "models").iterdir()]) == 3 < len(old)  # one for each site
    lines.close()
    finish(config, folder)
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_stopped_before_any_write_or_deletion_and_started_again_it_ends_the_same(config, tmp_path, monkeypatch):
    finish(config, tmp_path / "whole")
    stop, deleted = [0], []

    def failing(original):
        def guarded(*args):
            stop[0] -= 1
            if stop[0] < 0:
                raise KeyboardInterrupt
            original(*args)

        return guarded

    delete = FileStore.__delitem__
    for module in (_io, checkpoint, results):
        monkeypatch.setattr(module, "write", failing(_io.write))
    monkeypatch.setattr(results, "append", failing(results.append))
    monkeypatch.setattr(
        FileStore, "__delitem__", failing(lambda self, entry: deleted.append(entry) or delete(self, entry))
    )
    for attempt in range(99):
        stop[0] = 3 + attempt  # a little further each time
        try:
            finish(config, tmp_path / "torn")
            break
        except KeyboardInterrupt:
            pass
    assert 3 < attempt < 98 and deleted
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")
