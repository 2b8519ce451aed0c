"""Digests of code: equal for equal code, different after any change that matters."""

import functools
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedbeyond as fb
from fedbeyond.experiment.code import digest


def functions(text, name="f"):
    """Define a function as a cell of a notebook does, twice."""
    found = []
    for _ in range(2):
        space = {"__name__": "notebook", "nn": nn}
        exec(text, space)
        found.append(space[name])
    return found


CELLS = {
    "body": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "default": ("def f(x=1): return x", "def f(x=2): return x"),
    "keyword": ("def f(*, x=1): return x", "def f(*, x=2): return x"),
    "closure": ("def g(k):\n  return lambda x: x * k\nf = g(1)", "def g(k):\n  return lambda x: x * k\nf = g(2)"),
    "helper": ("def g(): return 1\ndef f(): return g()", "def g(): return 2\ndef f(): return g()"),
    "constant": ("k = 1\ndef f(): return k", "k = 2\ndef f(): return k"),
    "inner": ("def f():\n  def g(): return 1\n  return g", "def f():\n  def g(): return 2\n  return g"),
    "class": (
        "class f(nn.Module):\n  def forward(self, x): return x",
        "class f(nn.Module):\n  def forward(self, x): return -x",
    ),
    "called": ("def f(x): return x.min()", "def f(x): return x.max()"),
    "list": ("k = [1]\ndef f(): return k", "k = [2]\ndef f(): return k"),
    "global network": ("def f(): return net\nnet = nn.ReLU()", "def f(): return net\nnet = nn.Tanh()"),
    "recursive": ("def f(n): return n and f(n - 1)", "def f(n): return n and f(n - 2)"),
}


@pytest.mark.parametrize(("before", "after"), CELLS.values(), ids=CELLS)
def test_a_digest_changes_with_the_code_and_with_nothing_else(before, after):
    one, again = functions(before)
    assert digest(one) == digest(again) != digest(functions(after)[0])
    assert digest(functions("\n\n# a comment\n" + before)[0]) == digest(one)


def test_digests_of_objects_are_those_of_their_contents():
    a, b = np.zeros(3), np.array([0, 0, 1.0])
    assert digest(a) == digest(np.zeros(3)) != digest(b) != digest(torch.zeros(3))
    assert digest(torch.zeros(3)) == digest(torch.zeros(3)) != digest(torch.zeros(3, 1))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    assert digest(functools.partial(max, 1)) != digest(functools.partial(max, 2))
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    before = digest(net)
    with torch.no_grad():
        net.weight[0, 0] += 1
    assert digest(net) != before


def test_equal_contents_at_the_address_of_an_object_that_is_gone_are_not_skipped():
    assert digest([{"a": k} for k in range(9)]) != digest([{"a": 0} for k in range(9)])
    assert digest([{"a": (k,)} for k in range(50)]) != digest([{"a": (min(k, 44),)} for k in range(50)])


def test_attributes_of_a_network_count_besides_its_numbers():
    one, other, same = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    for net, scale in ((one, 1.0), (other, 2.0), (same, 1.0)):
        net.scale = scale
        net.load_state_dict(one.state_dict())
    assert digest(one) == digest(same) == digest(one.eval()) != digest(other)
    assert digest(one.to(torch.bfloat16)) != digest(same)


def test_bound_methods_differ_by_their_object():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        def build(self, task):
            return self.factor

    assert digest(Scaled(1).build) == digest(Scaled(1).build) != digest(Scaled(2).build)


def test_an_attribute_that_is_called_as_a_global_does_not_count():
    one, other = (functions(f"data = {value}\ndef f(x): return x.data")[0] for value in (1, 2))
    assert digest(one) == digest(other)


def test_own_modules_count_and_installed_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number in (1, 2):
        (tmp_path / f"own_{number}.py").write_text(f"def width(): return {number}\n")
        cells = (f"import own_{number} as own\ndef f(): return own.width()",)
        cells += (f"from own_{number} import width\ndef f(): return width()",)
        found.append([digest(functions(cell)[0]) for cell in cells])
    assert all(one != two for one, two in zip(*found, strict=True))


def test_a_digest_is_the_same_in_another_process():
    program = """
from fedbeyond.experiment.code import digest
space = {}
exec("def f(x): return x in {'a', 'b', 'c', 'd'}", space)
print(digest(space["f"]))
"""
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    outputs = {subprocess.check_output([sys.executable, "-c", program], env=seed) for seed in seeds}
    assert len(outputs) == 1


def test_methods_differ_by_their_options_and_by_what_is_replaced():
    assert digest(fb.fedprox(mu=0.1)) == digest(fb.fedprox(mu=0.1)) != digest(fb.fedprox(mu=0.2))
    assert digest(replace(fb.fedavg(), min_clients=2)) != digest(fb.fedavg())
