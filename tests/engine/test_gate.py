"""Nothing reaches a method but what it declared: ten thousand mutated replies and not one gets through."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbeyond import tree
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import FederationError
from fedbeyond.experiment import registry
from fedbeyond.server import Envelope, Failure, Reply, Request, Round
from fedbeyond.testing import toy

METHOD = registry.build("scaffold+ga")
GATE = toy.gate(METHOD)


def good_answers():
    federation = Simulator(METHOD.client, toy.sites(METHOD))
    state = start(METHOD, federation.clients, toy.shared(METHOD))
    request = Request("train", state["server"], federation.clients)
    return request, federation.ask(request, Envelope(0, 0, {}))


REQUEST, GOOD = good_answers()
PATHS = list(tree.flatten(GOOD["north"].body))
FLOATS = [path for path in PATHS if tree.flatten(GOOD["north"].body)[path].is_floating_point()]
PARAMS = ["model/params"]


def changed(reply, path, change):
    """The reply with what stands at `path` replaced by `change` of it, or dropped if that is None."""

    def visit(node, keys):
        key, *rest = keys
        new = visit(node[key], rest) if rest else change(node[key])
        return {k: v for k, v in {**node, key: new}.items() if v is not DROP}

    return reply._replace(body=visit(reply.body, path.split("/")))


DROP = object()


def poke(value):
    def change(leaf):
        leaf = leaf.clone()
        leaf.view(-1)[-1] = value
        return leaf

    return change


WRONG_LEAVES = {
    "NaN": poke(float("nan")),
    "infinity": poke(float("inf")),
    "minus infinity": poke(float("-inf")),
    "double": torch.Tensor.double,
    "half": torch.Tensor.half,
    "integer": torch.Tensor.int,
    "complex": lambda leaf: leaf.to(torch.complex64),
    "boolean": torch.Tensor.bool,
    "one dimension more": lambda leaf: leaf[None],
    "another shape": lambda leaf: torch.cat((leaf.reshape(-1), leaf.new_zeros(1))),
    "empty": lambda leaf: leaf.new_empty(0),
    "a list": torch.Tensor.tolist,
    "an array": torch.Tensor.numpy,
    "a number": lambda leaf: 0.5,
    "nothing": lambda leaf: None,
    "text": lambda leaf: "0.5",
    "an object array": lambda leaf: np.array([object()]),
    "a tree": lambda leaf: {"more": leaf},
    "missing": lambda leaf: DROP,
    "with a graph": lambda leaf: leaf.clone().requires_grad_(),
    "a parameter": lambda leaf: nn.Parameter(leaf.clone()),
    "sparse": lambda leaf: leaf.reshape(-1).to_sparse(),
}
WRONG_COUNTS = {
    "negative": poke(-1),
    "enormous": poke(10**15),
    "grown too much": poke(10**8),
    "float": torch.Tensor.float,
    "gone": lambda leaf: DROP,
}
WRONG_WEIGHTS = [0, -28, 29, 27, 1e12, float("nan"), float("inf"), "28", None, True, torch.tensor(28.0), [28]]
WRONG_NAMES = ["east", "west", "south", "", "North", None, 3]
EXTRA = ["mean_image", "model/params/extra", "model/more", "control/extra", "model/buffers/x"]

leaf = st.tuples(st.just("leaf"), st.sampled_from(FLOATS), st.sampled_from(list(WRONG_LEAVES)))
count = st.tuples(st.just("count"), st.sampled_from(sorted({*PATHS} - {*FLOATS})), st.sampled_from(list(WRONG_COUNTS)))
branch = st.tuples(st.just("branch"), st.sampled_from(["model", "model/params", "model/buffers", "control"]), st.none())
extra = st.tuples(st.just("extra"), st.sampled_from(EXTRA), st.none())
weight = st.tuples(st.just("weight"), st.sampled_from(WRONG_WEIGHTS), st.none())
name = st.tuples(st.just("name"), st.sampled_from(WRONG_NAMES), st.none())
size = st.tuples(st.just("size"), st.sampled_from(PARAMS), st.floats(12, 1e20) | st.floats(0, 1e-2))
body = st.tuples(st.just("body"), st.sampled_from([None, [], "tree", torch.ones(3), {}, {"model": {}}]), st.none())
mutation = st.one_of(leaf, leaf, leaf, count, branch, extra, weight, name, size, body)


def mutated(reply, kind, what, how):
    if kind == "leaf":
        return changed(reply, what, WRONG_LEAVES[how])
    if kind == "count":
        return changed(reply, what, WRONG_COUNTS[how])
    if kind == "branch":
        return changed(reply, what, lambda node: DROP)
    if kind == "extra":
        *above, last = what.split("/")
        if not above:
            return reply._replace(body=reply.body | {last: torch.ones(2)})
        return changed(reply, "/".join(above), lambda node: node | {last: torch.ones(2)})
    if kind == "size":
        return changed(reply, what, lambda node: tree.scale(how, node))
    return reply._replace(**{{"name": "client"}.get(kind, kind): what})


SEEN: Counter = Counter()


@settings(max_examples=1100)
@given(st.lists(mutation, min_size=10, max_size=10), st.sampled_from(list(toy.SIZES)))
def fuzz(mutations, site):
    for kind, what, how in mutations:
        bad = mutated(GOOD[site], kind, what, how)
        if (kind == "name" and what == site) or (kind == "weight" and what == toy.SIZES[site]):
            continue  # not a mutation after all
        try:
            verdict = GATE.admit(REQUEST, {**GOOD, site: bad})
        except FederationError as error:
            raise AssertionError(f"one bad reply of three broke the quorum: {error}") from None
        assert site not in [reply.client for reply in verdict.replies], (kind, what, how)
        assert [failure.client for failure in verdict.rejected] == [site] and verdict.rejected[0].reason
        SEEN[kind] += 1


@pytest.mark.slow
def test_ten_thousand_mutated_replies_and_none_reaches_a_method():
    fuzz()
    assert SEEN.total() >= 10_000 and len(SEEN) == 8, SEEN


NOVA = registry.build("fednova")


def nova_answers(sizes):
    federation = Simulator(NOVA.client, toy.sites(NOVA, sizes))
    state = start(NOVA, federation.clients, toy.shared(NOVA))
    request = Request("train", state["server"], federation.clients)
    return request, federation.ask(request, Envelope(0, 0, {}))


@pytest.mark.parametrize("lie", [0.0, -3.0, 1e-9, 1e9])
def test_a_scalar_that_a_server_divides_by_is_no_way_in(lie):
    request, answers = nova_answers(toy.SIZES)
    bad = answers["north"]._replace(body=answers["north"].body | {"reach": torch.tensor(lie)})
    verdict = toy.gate(NOVA).admit(request, {**answers, "north": bad})
    assert [failure.client for failure in verdict.rejected] == ["north"]


@pytest.mark.parametrize("sizes", [{"east": 8, "north": 8, "west": 900}, {"east": 8, "north": 900}])
def test_a_site_that_is_a_hundred_times_as_large_is_welcome(sizes):
    request, answers = nova_answers(sizes)
    assert toy.gate(NOVA, sizes).admit(request, answers).rejected == []


def test_a_reply_of_any_depth_is_only_a_wrong_reply():
    deep: dict = {}
    for _ in range(5000):
        deep = {"x": deep}
    verdict = GATE.admit(REQUEST, {**GOOD, "east": GOOD["east"]._replace(body=deep)})
    assert [failure.client for failure in verdict.rejected] == ["east"]


def test_good_replies_pass_sorted_by_client_with_their_ledger():
    verdict = GATE.admit(REQUEST, dict(reversed(GOOD.items())))
    assert [reply.client for reply in verdict.replies] == ["east", "north", "west"] and not verdict.rejected
    east = {(left.name, left.kind): left.bytes for left in verdict.ledger if left.client == "east"}
    model = GOOD["east"].body["model"]
    assert east == {
        ("model", "parameters"): tree.size(model),
        ("control", "parameters"): tree.size(model["params"]),
        ("ga_received", "scalars"): 4,
        ("ga_trained", "scalars"): 4,
    }


def test_what_a_refused_reply_carried_out_is_in_the_ledger_too():
    """Names that a site chose are counted, and stand neither in the ledger nor in the reason."""
    leaky = GOOD["east"]._replace(body=GOOD["east"].body | {"faces": torch.ones(100), "Jane Doe": torch.ones(1)})
    verdict = GATE.admit(REQUEST, {**GOOD, "east": leaky})
    assert ("east", "train", "2 undeclared", "undeclared", 101, 404) in verdict.ledger
    ((client, reason, error),) = verdict.rejected
    assert (client, reason) == ("east", "the reply has 2 undeclared entries") and "Jane Doe, faces" in str(error)


@pytest.mark.parametrize(
    ("spec", "entry", "lie"),
    [
        ("arfl", "loss", -5.0),
        ("afl", "loss", 1e30),
        ("fedavg+ga", "ga_received", -0.5),
        ("fedavg+ga", "ga_trained", 1e30),
        ("fedavg+ga(metric=accuracy)", "ga_trained", 0.5),
        ("fedavg+ga(metric=accuracy)", "ga_trained", -1.5),
        ("ndag(width=2)", "novelty", -1.0),
    ],
)
def test_a_scalar_outside_its_declared_range_is_refused(spec, entry, lie):
    """A claimed loss of -5 had all the weight under arfl; one of 1e30 ended a server that ran afl."""
    method = registry.build(spec)
    federation = Simulator(method.client, toy.sites(method))
    state = start(method, federation.clients, toy.shared(method))

    class Lying:
        clients = federation.clients

        def ask(self, request, envelope):
            answers = federation.ask(request, envelope)
            body = answers["north"].body
            return answers | {"north": answers["north"]._replace(body=body | {entry: changed_to(lie, body[entry])})}

    now = Round(0, 2, federation.clients, federation.clients)
    _, log = play(method, state, now, Lying(), toy.gate(method))
    assert [(each["site"], each["reason"].partition(" from ")[0]) for each in log["rejected"]] == [
        ("north", f"{entry} is not in the range")
    ]
    assert "north" not in log["weights"]


def changed_to(lie, node):
    return tree.map(lambda leaf: torch.full_like(leaf, lie), node)


def test_noise_takes_a_loss_out_of_its_range_and_dp_says_so():
    assert all(sent.within is None for sent in registry.build("arfl+dp").sends["train"].values())


def test_a_reason_is_cut_and_has_no_control_characters():
    hostile = "\x1b[2J\x1b]0;owned\x07\n{forged line}\u202e" + "A" * 10**6
    (failure,) = GATE.admit(REQUEST, {**GOOD, "east": Failure("east", hostile)}).rejected
    assert failure.reason.isprintable() and len(failure.reason) == 500 and "forged line" in failure.reason
    named = GOOD["east"]._replace(client="B" * 10**6)
    (failure,) = GATE.admit(REQUEST, {**GOOD, "east": named}).rejected
    assert failure.reason.startswith("replied in the name of 'BBB") and len(failure.reason) == 500


def test_a_stranger_is_not_heard():
    verdict = GATE.admit(REQUEST, {**GOOD, "south": Reply("south", GOOD["east"].body, 20)})
    assert [(f.client, f.reason) for f in verdict.rejected] == [("south", "replied though it was not asked")]


def test_silence_counts_as_a_failure_with_the_sites_name():
    answers = {name: reply for name, reply in GOOD.items() if name != "west"}
    assert GATE.admit(REQUEST, answers).rejected == [Failure("west", "sent no reply")]


@pytest.mark.parametrize(
    ("asked", "quorum", "usable", "enough"),
    [
        (3, None, 2, True),
        (3, None, 1, False),
        (2, None, 1, False),
        (1, None, 1, True),
        (3, 3, 2, False),
        (3, 1, 1, True),
    ],
)
def test_a_round_goes_on_if_a_quorum_holds(asked, quorum, usable, enough):
    names = tuple(toy.SIZES)[:asked]
    gate = toy.gate(METHOD)
    gate = type(gate)(gate.sends, gate.nets, gate.enrolled, quorum)
    answers = {name: GOOD[name] if i < usable else Failure(name, "is on fire") for i, name in enumerate(names)}
    request = REQUEST._replace(to=names)
    if enough:
        assert len(gate.admit(request, answers).replies) == usable
    else:
        with pytest.raises(FederationError, match=f"only {usable} of {asked} sites .* is on fire"):
            gate.admit(request, answers)


def test_with_two_sites_of_very_different_size_neither_is_trusted():
    shrunk = changed(GOOD["north"], "model/params", lambda node: tree.scale(1e-4, node))
    with pytest.raises(FederationError, match="only 0 of 2"):
        GATE.admit(REQUEST._replace(to=("east", "north")), {"east": GOOD["east"], "north": shrunk})
