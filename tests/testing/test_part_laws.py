"""A part of a network is trained under every method that makes sense on it: the laws hold as for the whole."""

from functools import cache, partial

import pytest
import torch

from fedbeyond import tree
from fedbeyond.engine.workers import Workers
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.networks.part import train_part
from fedbeyond.testing import toy
from fedbeyond.testing.laws import LAWS, LawBroken, alive, reference, simulate
from support.method_settings import REPRESENTATIVE, SMALL

PARTS = {"head": "head", "last": "last", "norm": "norm", "lora": "lora(targets=conv, rank=2)"}
PARTS |= {"factors": "lora(targets=conv, rank=2, exact=false)"}
OWN = {"moon": "last", "fedbn": "norm"}  # these are refused where features or BatchNorm are frozen
TURNS = {name: OWN.get(name, list(PARTS)[place % len(PARTS)]) for place, name in enumerate(REPRESENTATIVE)}
METHODS = [SMALL.get(name, name) for name in registry.REGISTRY["methods"]]


def build(name, part):
    return train_part(registry.build(name), registry.make_one("parts", PARTS[part])._replace(cache=False))


@cache
def made(name, part):
    return partial(build, name, part)


def pairs():
    """Each representative method with one part, and in make test-all with every part."""
    for name in REPRESENTATIVE:
        for part in PARTS:
            if not (name in OWN and part in ("head", "lora", "factors")):
                marks = () if TURNS[name] == part else pytest.mark.slow
                yield pytest.param(name, part, marks=marks)


@pytest.mark.parametrize(("name", "part"), list(pairs()))
def test_methods_of_each_sort_obey_every_law_on_a_part(name, part):
    name = SMALL.get(name, name)
    needless = part == "last" and not build(name, part).needs  # the law tries a network that has no blocks
    for law in [law for key, law in LAWS.items() if not (needless and key == "declared")]:
        law(made(name, part))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_sends_stores_and_keeps_only_what_is_trained(name):
    part = {"fedbn": "norm"}.get(name, "last" if registry.build(name).shapes_features else "head")
    run, whole = reference(made(name, part)), reference(partial(registry.build, name))

    def held(state):
        return [path for path in tree.flatten(state) if "body.0.weight" in path and "generator" not in path]

    assert held(whole.state)
    assert not any(held(owned) for owned in (run.state, *run.client_states.values()))
    sent, usual = (
        sum(entry.bytes for log in one.round_log for entry in log["ledger"] if entry.name == "model")
        for one in (run, whole)
    )
    assert sent < usual or run.method.pooled


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fedavg", "fedbn", "erm", "fedsr")])
def test_exactly_the_methods_that_say_so_do_nothing_to_a_head(name):
    """FedSR has other parameters than FedAvg; FedIIR pulls at the head by less than what counts on the toy."""
    if registry.build(name).shapes_features:
        with pytest.raises(ConfigError, match="acts on features"):
            toy.nets(build(name, "head"))
        return
    base = "erm" if registry.build(name).pooled else "fedavg"
    alive(made("fediir(gamma=10)" if name == "fediir" else name, "head"), [made(base, "head")])


def test_a_method_that_should_say_so_is_found_out(monkeypatch):
    monkeypatch.setattr("fedbeyond.networks.part.ensure_effect", lambda method, net: None)
    with pytest.raises(LawBroken, match="plain averaging"):
        alive(partial(build, "coral", "head"), [made("erm", "head")])


@pytest.mark.parametrize(
    ("name", "part"), [("scaffold", "lora"), ("feddag(width=2, warmup=1)", "last"), ("moon", "norm")]
)
def test_workers_equal_the_simulator_bit_for_bit_on_a_part(name, part):
    method = build(name, part)
    workers = Workers(method.client, toy.sites(method), 2)
    try:
        state, _ = simulate(method, federation=workers)
    finally:
        workers.close()
    got, want = tree.flatten(state), tree.flatten(reference(made(name, part)).state)
    assert got.keys() == want.keys() and all(torch.equal(got[key], want[key]) for key in want)


def test_noise_and_clipping_concern_what_is_sent():
    """With the same clip, the change of a few numbers is clipped less than that of all."""
    run = simulate(build("fedavg+dp(clip=0.5, noise=0)", "head"), 1)
    start = toy.shared(build("fedavg", "head"))["model"]["params"]
    gap = tree.sub(run[0]["server"]["model"]["params"], start)
    assert set(gap) == {"head.weight", "head.bias"}
    assert 0 < float(tree.dot(gap, gap).sqrt()) <= 0.5 + 1e-6
    plain = simulate(build("fedavg", "head"), 1)[0]["server"]["model"]["params"]
    free = simulate(build("fedavg+dp(clip=1000, noise=0)", "head"), 1)
    assert all(torch.allclose(free[0]["server"]["model"]["params"][key], plain[key], atol=1e-6) for key in plain)
