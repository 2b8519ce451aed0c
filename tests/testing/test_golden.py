"""Numbers change only when NUMERICS does: the weights of twenty methods are pinned."""

import json

import pytest
import torch

import fedbeyond
from fedbeyond import tree
from support import golden

KNOWN = json.loads(golden.FILE.read_text())


def test_the_pinned_weights_are_of_the_current_numerics():
    assert KNOWN["numerics"] == fedbeyond.NUMERICS, golden.CHANGED
    assert list(KNOWN["methods"]) == golden.METHODS


@pytest.mark.parametrize("name", golden.METHODS)
def test_a_methods_weights_are_those_that_are_pinned(name):
    model, known = golden.weights(name), KNOWN["methods"][name]
    assert golden.sketch(model) == pytest.approx(known["sketch"], rel=1e-3, abs=1e-3), golden.CHANGED
    if golden.build() in known["digests"]:  # another processor or torch rounds otherwise
        assert tree.digest(model).hex()[:16] == known["digests"][golden.build()], golden.CHANGED


def test_a_change_in_the_last_bit_has_another_digest_and_a_small_one_another_sketch():
    model = golden.weights("fedavg")
    leaf = model["params"]["head.weight"]
    last = model | {"params": model["params"] | {"head.weight": torch.nextafter(leaf, leaf + 1)}}
    assert tree.digest(last) != tree.digest(model)
    moved = model | {"params": model["params"] | {"head.weight": leaf + 0.01}}
    assert golden.sketch(moved) != pytest.approx(golden.sketch(model), rel=1e-3, abs=1e-3)


def test_pinned_weights_are_not_overwritten_while_numerics_stays(monkeypatch, tmp_path):
    changed = KNOWN | {"numerics": fedbeyond.NUMERICS, "methods": {"fedavg": {"sketch": [], "digests": {}}}}
    changed["methods"]["fedavg"]["digests"][golden.build()] = "another"
    monkeypatch.setattr(golden, "FILE", tmp_path / "golden.json")
    golden.FILE.write_text(json.dumps(changed))
    with pytest.raises(SystemExit, match="fedavg changed: raise NUMERICS"):
        golden.write()
