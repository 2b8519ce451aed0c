"""A stored tree that was damaged is not used: the file is named, with what to do."""

from random import Random

import pytest
import torch
from safetensors.torch import save_file

from experiment.test_runner import finish
from fedbeyond.errors import StorageError
from fedbeyond.experiment import checkpoint
from fedbeyond.experiment.config import Config, Train
from support.asserts import assert_equal

STATE = {
    "state": {"a": {"w": torch.arange(6.0).reshape(2, 3)}, "n": torch.tensor(3), "empty": {}},
    "clients": {"x": {"b": torch.tensor([True, False]), "h": torch.ones(3, dtype=torch.bfloat16)}},
}


def flipped(path, bit):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_every_flipped_bit_of_a_checkpoint_is_detected(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, STATE, rounds=3)
    for bit in range(0, 8 * path.stat().st_size):
        flipped(path, bit)
        with pytest.raises(
            StorageError, match=rf"^{path} (is damaged|has no checksum).*; restore it from a backup, or"
        ):
            checkpoint.load(path)
        flipped(path, bit)
    state, notes = checkpoint.load(path)
    assert notes == {"rounds": 3} and state.keys() == STATE.keys()
    assert_equal(state["clients"]["x"], STATE["clients"]["x"])


def test_forty_of_forty_flipped_bits_stop_a_run_that_is_resumed(small, tmp_path):
    config = Config(method="scaffold", train=Train(rounds=1, batch_size=8), **small)
    finish(config, tmp_path)
    (tmp_path / "done").unlink()
    path = tmp_path / "checkpoint.safetensors"
    before, chance = path.read_bytes(), Random(0)
    for _ in range(40):
        flipped(path, chance.randrange(8 * len(before)))
        with pytest.raises(StorageError, match=rf"^{path} .*; restore it from a backup, or delete {tmp_path} and run"):
            finish(config, tmp_path)
        path.write_bytes(before)
    assert not finish(config, tmp_path) and (tmp_path / "done").exists()  # nothing is left to do


def test_a_file_that_was_cut_short_is_damaged(tmp_path):
    path = tmp_path / "best.safetensors"
    checkpoint.save(path, STATE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="is damaged"):
        checkpoint.load(path)


def test_a_file_of_another_program_or_of_an_older_version_is_refused(tmp_path):
    path = tmp_path / "best.safetensors"
    save_file({"w": torch.zeros(2)}, path, metadata={"notes": "{}"})
    with pytest.raises(StorageError, match="has no checksum: it is damaged, or of an older fedbeyond"):
        checkpoint.load(path)


def test_equal_trees_give_equal_files_whatever_their_order():
    turned = {key: dict(reversed(STATE[key].items())) for key in reversed(STATE)}
    assert checkpoint.content(STATE, a=1, b=2) == checkpoint.content(turned, b=2, a=1)
