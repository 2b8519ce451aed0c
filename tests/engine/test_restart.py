"""Sites that keep their states themselves stay in step with a server that stops in the middle of a round."""

import pytest
import torch

from fedbeyond.client import Client, answer, enrol, private_bytes, without_rollback
from fedbeyond.errors import FederationError
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.server import Envelope, Request
from fedbeyond.testing import toy

SITE = toy.sites(fedavg())[0]


def add(site, received, private):
    """Keeps the sum of all that it was ever sent, and tells it."""
    total = private["total"] + received["number"]
    return {"total": total}, {"total": total}


ADDER = Client(lambda site: {"total": torch.tensor(0)}, {"first": add, "second": add})


def ask(client_state, kind, number, round, ticket, accepted=None):
    named = {} if accepted is None else {SITE.name: accepted}
    request = Request(kind, {"number": torch.tensor(number)}, (SITE.name,))
    reply, client_state = answer(ADDER, SITE, client_state, request, Envelope(round, ticket, named))
    return int(reply.body["total"]), client_state


def test_a_round_that_is_played_again_finds_the_state_before_it():
    client_state = enrol(ADDER, SITE)
    told, client_state = ask(client_state, "first", 1, round=0, ticket=0)
    told, client_state = ask(client_state, "second", 10, round=0, ticket=1, accepted=0)
    assert told == 11
    told, client_state = ask(client_state, "first", 100, round=1, ticket=2, accepted=1)
    told, client_state = ask(client_state, "second", 1000, round=1, ticket=3, accepted=2)
    assert told == 1111
    told, client_state = ask(client_state, "first", 100, round=1, ticket=2, accepted=1)  # as its checkpoint has it
    assert told == 111
    told, client_state = ask(client_state, "second", 1000, round=1, ticket=3, accepted=2)
    assert told == 1111
    assert ask(client_state, "first", 10000, round=2, ticket=4, accepted=3)[0] == 11111


def test_a_reply_that_is_not_accepted_in_the_middle_of_a_round_is_dropped_alone():
    _, client_state = ask(enrol(ADDER, SITE), "first", 1, round=0, ticket=0)
    _, client_state = ask(client_state, "second", 10, round=0, ticket=1, accepted=0)
    assert ask(client_state, "first", 100, round=1, ticket=2, accepted=0)[0] == 101


def test_a_run_that_begins_again_begins_with_the_first_state():
    _, client_state = ask(enrol(ADDER, SITE), "first", 1, round=0, ticket=0)
    _, client_state = ask(client_state, "first", 10, round=1, ticket=1, accepted=0)
    assert ask(client_state, "first", 100, round=0, ticket=0)[0] == 100


def test_a_site_that_lost_its_state_says_so_and_does_not_go_on_with_another():
    with pytest.raises(FederationError, match=r"has no private state for exchange 7.* restore .* restart the run"):
        ask(enrol(ADDER, SITE), "first", 1, round=4, ticket=8, accepted=7)


def test_between_rounds_a_site_keeps_two_states():
    _, client_state = ask(enrol(ADDER, SITE), "first", 1, round=0, ticket=0)
    _, client_state = ask(client_state, "second", 10, round=0, ticket=1, accepted=0)
    assert int(client_state["before"]["private"]["total"]) == 0 and "before" not in without_rollback(client_state)
    assert ask(without_rollback(client_state), "first", 100, round=1, ticket=2, accepted=1)[0] == 111
    assert private_bytes(client_state) == 8  # the integer that is pending


def test_a_client_is_told_of_its_own_acceptance_alone():
    envelope = Envelope(3, 9, {"east": 7, "west": 8}, run="abc")
    assert envelope.to("east") == Envelope(3, 9, {"east": 7}, run="abc") and envelope.to("north").accepted == {}
