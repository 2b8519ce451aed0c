"""What is asked of a site once in a run."""

import pytest

from fedbeyond.engine.rounds import play, start
from fedbeyond.errors import FederationError
from fedbeyond.experiment import registry
from fedbeyond.server import Reply, Round, request_once
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty
from fedbeyond.testing.laws import simulator


def test_each_site_is_asked_once_and_again_if_it_failed():
    now = Round(1, 3, ("east", "north", "west"), ("east", "north", "west"))
    asking = request_once("style", {"east": {"s": 1}}, now, {"with": 2})
    request = next(asking)
    assert (request.kind, request.to, request.body) == ("style", ("north", "west"), {"with": 2})
    with pytest.raises(StopIteration) as end:
        asking.send([Reply("west", {"s": 3}, 1.0)])  # north failed
    bank = end.value.value
    assert bank == {"east": {"s": 1}, "west": {"s": 3}}
    assert next(request_once("style", bank, now)).to == ("north",)
    with pytest.raises(StopIteration) as end:
        next(request_once("style", {name: {} for name in now.clients}, now))
    assert set(end.value.value) == set(now.clients)


@pytest.mark.parametrize("name", ["fedcsa", "ccst", "elcfs", "csac(pretrain=1)", "fccl(pretrain=1)"])
def test_a_newcomer_that_fails_does_not_end_the_run(name):
    method = registry.build(name)
    federation, gate = simulator(method), toy.gate(method, quorum=1)
    kind = next(kind for kind in method.sends if kind != "train")
    state = start(method, federation.clients, toy.shared(method))
    faulty = Faulty(federation, "north", 1, "raises")
    for number, asked in enumerate([("east", "west"), ("north", "west"), ("east", "north")]):
        state, round_log = play(method, state, Round(number, 3, asked, federation.clients), faulty, gate)
        assert [entry["site"] for entry in round_log["rejected"]][:1] == (["north"] if number == 1 else [])
        assert number != 1 or round_log["rejected"][0]["request"] == kind


def test_if_all_are_new_one_must_answer():
    method = registry.build("fedcsa")
    federation = Faulty(simulator(method), "north", 0, "raises")
    state = start(method, federation.clients, toy.shared(method))
    with pytest.raises(FederationError, match="only 0 of 1 sites"):
        play(method, state, Round(0, 1, ("north",), federation.clients), federation, toy.gate(method))
