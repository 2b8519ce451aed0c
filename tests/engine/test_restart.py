"""Sites that keep their states themselves stay in step with a server that stops in the middle of a round."""

import pytest
import torch

from fedbeyond.client import Client, answer, enrol, rested, weight
from fedbeyond.errors import FederationError
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.server import Post, Request
from fedbeyond.testing import toy

SITE = toy.sites(fedavg())[0]


def add(site, received, private):
    """Keeps the sum of all that it was ever sent, and tells it."""
    total = private["total"] + received["number"]
    return {"total": total}, {"total": total}


ADDER = Client(lambda site: {"total": torch.tensor(0)}, {"first": add, "second": add})


def ask(slots, kind, number, round, ticket, accepted=None):
    named = {} if accepted is None else {SITE.name: accepted}
    request = Request(kind, {"number": torch.tensor(number)}, (SITE.name,))
    reply, slots = answer(ADDER, SITE, slots, request, Post(round, ticket, named))
    return int(reply.body["total"]), slots


def test_a_round_that_is_played_again_finds_the_state_before_it():
    slots = enrol(ADDER, SITE)
    told, slots = ask(slots, "first", 1, round=0, ticket=0)
    told, slots = ask(slots, "second", 10, round=0, ticket=1, accepted=0)
    assert told == 11
    told, slots = ask(slots, "first", 100, round=1, ticket=2, accepted=1)
    told, slots = ask(slots, "second", 1000, round=1, ticket=3, accepted=2)
    assert told == 1111
    told, slots = ask(slots, "first", 100, round=1, ticket=2, accepted=1)  # as its checkpoint has it
    assert told == 111
    told, slots = ask(slots, "second", 1000, round=1, ticket=3, accepted=2)
    assert told == 1111
    assert ask(slots, "first", 10000, round=2, ticket=4, accepted=3)[0] == 11111


def test_a_reply_that_is_not_accepted_in_the_middle_of_a_round_is_dropped_alone():
    _, slots = ask(enrol(ADDER, SITE), "first", 1, round=0, ticket=0)
    _, slots = ask(slots, "second", 10, round=0, ticket=1, accepted=0)
    assert ask(slots, "first", 100, round=1, ticket=2, accepted=0)[0] == 101


def test_a_run_that_begins_again_begins_with_the_first_state():
    _, slots = ask(enrol(ADDER, SITE), "first", 1, round=0, ticket=0)
    _, slots = ask(slots, "first", 10, round=1, ticket=1, accepted=0)
    assert ask(slots, "first", 100, round=0, ticket=0)[0] == 100


def test_a_site_that_lost_its_state_says_so_and_does_not_go_on_with_another():
    with pytest.raises(
        FederationError, match=r"has no private state of exchange 7.* bring back .* begin the run again"
    ):
        ask(enrol(ADDER, SITE), "first", 1, round=4, ticket=8, accepted=7)


def test_between_rounds_a_site_keeps_two_states():
    _, slots = ask(enrol(ADDER, SITE), "first", 1, round=0, ticket=0)
    _, slots = ask(slots, "second", 10, round=0, ticket=1, accepted=0)
    assert int(slots["before"]["private"]["total"]) == 0 and "before" not in rested(slots)
    assert ask(rested(slots), "first", 100, round=1, ticket=2, accepted=1)[0] == 111
    assert weight(slots) == 8  # the integer that is pending


def test_a_client_is_told_of_its_own_acceptance_alone():
    post = Post(3, 9, {"east": 7, "west": 8}, run="abc")
    assert post.to("east") == Post(3, 9, {"east": 7}, run="abc") and post.to("north").accepted == {}
