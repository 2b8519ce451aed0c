"""A site that lies is rejected with the reason; the server and the other sites continue."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from fedbeyond.errors import FederationError
from fedbeyond.evaluation.metrics import are_plausible, classification_metrics
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment
from fedbeyond.flower.messages import ASK, ENROL, EVALUATE, MEASURE, REPLY, Message
from support.grids import Nodes
from support.liars import DROP, GUEST, LIAR, SITES, federation, set_to, started

flower.PAUSE = 0.0
NEST = "[" * 900 + "]" * 900


@pytest.fixture
def config(small):
    return Config(method="fedavg", train=Train(rounds=2, batch_size=8, batchnorm="average", test=0.2), **small)


def raw(note, text):
    """A lie: a note as text that Python's json would not write."""

    def lie(reply):
        record = json.loads(reply.text)
        record["notes"][note] = "HERE"
        return replace(reply, received=json.dumps(record).replace('"HERE"', text))

    return lie


def in_body(**entries):
    """A lie: other numbers in the reply, or more of them."""
    return lambda reply: replace(reply, body=reply.body | entries, packed=None)


ENROLMENT = [
    ("images.train", 10**12),
    ("images.train", 10**4000),
    ("images.train", -19),
    ("images.train", 0),
    ("images.train", -0.0),
    ("images.train", math.nan),
    ("images.train", 19.5),
    ("images.train", "19"),
    ("images.train", True),
    ("images.train", [19]),
    ("images.train", DROP),
    ("images.val", DROP),
    ("images.val", -1),
    ("images.local_test", None),
    ("images.more", 3),
    ("images", DROP),
    ("images", 19),
    ("images", None),
    ("domain", DROP),
    ("domain", ""),
    ("domain", {"a": 1}),
    ("domain", "\x1b[2J"),
    ("domain", "A" * 10**5),
    ("private_bytes", DROP),
    ("private_bytes", -1),
    ("private_bytes", math.inf),
    ("private_bytes", 10**30),
    ("classes", DROP),
    ("classes", []),
    ("classes", "abc"),
    ("classes", [["a"]]),
    ("classes", ["a", "a"]),
    ("shape", DROP),
    ("shape", [3, 10**9, 10**9]),
    ("shape", [3, -1, 2]),
    ("shape", [True, 16, 16]),
    ("role", DROP),
    ("Jane Doe", 1),
]


@pytest.mark.parametrize(("path", "lie"), ENROLMENT, ids=[f"{path}-{str(lie)[:12]!a}" for path, lie in ENROLMENT])
def test_a_site_says_of_itself_what_is_asked_for_in_plausible_numbers(config, path, lie, tmp_path):
    """It is named with the reason before the run begins; the site's words are not repeated."""
    grid = federation(tmp_path / "sites", {ENROL: set_to(path, lie)})
    with pytest.raises(
        FederationError, match=r"^not all sites enrolled \(photo: what it says of itself is malf"
    ) as told:
        started(config, grid, tmp_path / "run")
    assert len(str(told.value)) < 700 and str(told.value).isprintable() and "Jane" not in str(told.value)


@pytest.mark.parametrize(
    "lie", [raw("site", NEST), raw("reason", NEST), raw("site", "9" * 5000), raw("domain", "1e999")]
)
def test_junk_in_an_enrolment_is_no_traceback(config, lie, tmp_path):
    grid = federation(tmp_path / "sites", {ENROL: lie})
    grid.names = {100: "cartoon", 99: "painting", 98: "photo", 97: "sketch"}
    with pytest.raises(FederationError, match=r"^not all sites enrolled \(photo: "):
        started(config, grid, tmp_path / "run")


def test_agreed_numbers_of_images_hold(config, tmp_path):
    """A lie below the ceiling passes, unless the federation's file has the number."""
    grid = federation(tmp_path / "sites", {ENROL: set_to("images.train", 10**6)})
    honest = federation(tmp_path / "honest", {})
    next(lines := started(config, honest, tmp_path / "first"))
    lines.close()
    facts = json.loads((tmp_path / "first" / "enrolled.json").read_text())["facts"]
    agreed = {name: sum(facts[name]["images"].values()) for name in SITES}
    with pytest.raises(
        FederationError, match=rf"photo: it claims \d+ images, agreed are {agreed['photo']} \(images in"
    ):
        started(config, grid, tmp_path / "run", agreed=agreed)
    next(started(config, honest, tmp_path / "second", agreed=agreed))


@pytest.mark.parametrize("claim", ["cartoon", "sketch", "<script>alert(1)</script>", "=cmd|' /C calc'!A0", "../photo"])
def test_a_site_has_the_domain_of_its_own_name(config, claim, tmp_path):
    """As one of another domain's clients, it would decide with its number of images how that domain is scored."""
    grid = federation(tmp_path / "sites", {ENROL: set_to("domain", claim)})
    with pytest.raises(FederationError, match=f"photo says that its domain is .*{re.escape(claim[:9])}"):
        started(config, grid, tmp_path / "run")


def test_clients_of_one_domain_have_its_name_with_a_number():
    def answer(domain):
        return Message(REPLY, {"domain": domain})

    enrolment.ensure_own_domains({"photo-0": answer("photo"), "photo-1": answer("photo")}, ("photo-0", "photo-1"), 2)
    enrolment.ensure_own_domains({"photo-07": answer("photo")}, ("photo-07",), 11)
    for name, domain, clients in [("photo-0", "sketch", 2), ("photo-2", "photo", 2), ("photo", "photo", 2)]:
        with pytest.raises(FederationError, match=f"{name} says that its domain is '{domain}'"):
            enrolment.ensure_own_domains({name: answer(domain)}, (name,), clients)


CHANGES = [
    ("images.train", 10**6, r"its images changed from \{'train': \d+, .*\} to \{'train': 1000000, .*during the run"),
    ("images.val", 1, "its images changed"),
    ("domain", "elsewhere", "its domain changed from photo to elsewhere"),
    ("classes", ["a", "b"], "its classes changed"),
    ("images.train", -19, "what it says of itself is malformed: images.train"),
]


@pytest.mark.parametrize("restarted", ["site", "server"])
@pytest.mark.parametrize(("path", "lie", "reason"), CHANGES)
def test_what_a_site_said_when_the_run_began_is_frozen(config, path, lie, reason, restarted, tmp_path):
    """A site that enrols again in the middle of a run with other facts is rejected, and the run continues."""
    lies, home = {}, tmp_path / "run"
    grid = federation(tmp_path / "sites", lies)
    first = next(lines := started(config, grid, home))
    assert first["rejected"] == []
    lies[ENROL] = set_to(path, lie)
    if restarted == "site":
        grid.apps[55] = grid.apps.pop(98)  # photo has another node id
        second = next(lines)
    else:
        lines.close()
        second = next(started(config, grid, home))
    assert [(each["site"], each["request"]) for each in second["rejected"]] == [(LIAR, "train"), (LIAR, "evaluate")]
    assert all(re.match(reason, each["reason"]) for each in second["rejected"])
    assert set(second["weights"]) == set(second["scores"]) - {GUEST} == {"cartoon", "painting"}


def test_a_site_that_tells_the_truth_again_takes_part_again(config, tmp_path):
    lies = {}
    grid = federation(tmp_path / "sites", lies)
    lines = started(replace(config, train=replace(config.train, rounds=3)), grid, tmp_path / "run")
    next(lines)
    lies[ENROL] = set_to("images.train", 10**6)
    grid.apps[55] = grid.apps.pop(98)
    assert {each["site"] for each in next(lines)["rejected"]} == {LIAR}
    lies.clear()
    grid.apps[56] = grid.apps.pop(55)
    third = next(lines)
    assert third["rejected"] == [] and set(third["weights"]) == set(SITES)


NOTES = "sent malformed notes: "
MIDRUN = [
    ("fedavg", ASK, set_to("client", DROP), f"{NOTES}client"),
    ("fedavg", ASK, set_to("client", ["photo"]), f"{NOTES}client"),
    ("fedavg", ASK, raw("client", NEST), f"{NOTES}client"),
    ("fedavg", ASK, set_to("client", "cartoon"), "replied in the name of 'cartoon'"),
    ("fedavg", ASK, set_to("weight", DROP), f"{NOTES}weight"),
    ("fedavg", ASK, set_to("weight", "19"), f"{NOTES}weight"),
    ("fedavg", ASK, set_to("weight", True), f"{NOTES}weight"),
    ("fedavg", ASK, raw("weight", NEST), f"{NOTES}weight"),
    ("fedavg", ASK, set_to("weight", math.nan), "claims nan training images"),
    ("fedavg", ASK, set_to("weight", -0.0), "claims -0.0 training images"),
    ("fedavg", ASK, set_to("weight", 10**4000), "claims 1000"),
    ("fedavg", ASK, set_to("private_bytes", DROP), f"{NOTES}private_bytes"),
    ("fedavg", ASK, set_to("private_bytes", "many"), f"{NOTES}private_bytes"),
    ("fedavg", ASK, set_to("private_bytes", "7"), f"{NOTES}private_bytes"),
    ("fedavg", ASK, set_to("private_bytes", -1), f"{NOTES}private_bytes"),
    ("fedavg", ASK, set_to("private_bytes", 10**30), f"{NOTES}private_bytes"),
    ("fedavg", ASK, raw("private_bytes", "1e999"), f"{NOTES}private_bytes"),
    ("fedavg", ASK, raw("private_bytes", "9" * 5000), "its reply cannot be read"),
    ("fedavg+dp(noise=0.1)", ASK, set_to("replies_counted", 10**9), f"{NOTES}replies_counted"),
    ("fedavg+dp(noise=0.1)", ASK, set_to("replies_counted", -1), f"{NOTES}replies_counted"),
    (
        "fedavg",
        ASK,
        lambda reply: replace(reply, subject="failure", notes={"reason": json.loads(NEST)}),
        "sent no reply",
    ),
    ("fedavg", ASK, lambda reply: replace(reply, subject="enrol"), "sent no reply"),
    ("afl", ASK, in_body(loss=torch.tensor(1e30)), "loss is not in the range from 0 to 1e+08"),
    ("arfl", ASK, in_body(loss=torch.tensor(-5.0)), "loss is not in the range from 0 to 1e+08"),
    ("arfl", ASK, in_body(loss=torch.tensor(math.nan)), "loss has numbers that are not finite"),
    ("fedavg", ASK, in_body(**{"Jane Doe": torch.ones(3)}), "the reply has 1 undeclared entry"),
    ("fedavg", ASK, in_body(more=torch.zeros(2**19)), "its reply cannot be read: ValueError: it has "),
    ("fedavg", ASK, set_to("more", "A" * 2**21), "its reply cannot be read: ValueError: it has "),
    ("fedavg", EVALUATE, set_to("more", "A" * 2**21), "its reply cannot be read: ValueError: it has "),
    ("fedavg", EVALUATE, set_to("client", DROP), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores", DROP), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores", []), "sent malformed scores"),
    ("fedavg", EVALUATE, raw("scores", NEST), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores.val", DROP), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores.train", {}), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores.val.accuracy", math.nan), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores.val.balanced_accuracy", DROP), "sent malformed scores"),
    ("fedavg", EVALUATE, set_to("scores.val.Jane Doe", 1), "sent malformed scores"),
]


@pytest.mark.parametrize(("method", "subject", "lie", "reason"), MIDRUN, ids=range(len(MIDRUN)))
def test_malformed_replies_are_rejected_and_the_run_continues(config, method, subject, lie, reason, tmp_path):
    select = "source-validation-balanced"  # which reads more of the scores
    config = replace(config, method=method, train=replace(config.train, select=select, rounds=1))
    grid = federation(tmp_path / "sites", {subject: lie})
    (line,) = started(config, grid, tmp_path / "run")
    ((site, request, given),) = [tuple(each.values()) for each in line["rejected"]]
    assert (site, request) == (LIAR, "train" if subject == ASK else "evaluate") and given.startswith(reason)
    assert len(given) <= 500 and given.isprintable()
    assert "Jane" not in (tmp_path / "run" / "results.jsonl").read_text()
    assert (LIAR in line["weights"], LIAR in line["scores"]) == (subject != ASK, subject != EVALUATE)


def test_a_guest_that_lies_is_rejected_too(config, tmp_path):
    config = replace(config, train=replace(config.train, rounds=1))
    grid = federation(tmp_path / "sites", {EVALUATE: set_to("scores.test.confusion", [[1e308]])}, liar=GUEST)
    (line,) = started(config, grid, tmp_path / "run")
    assert [each["site"] for each in line["rejected"]] == [GUEST] and set(line["scores"]) == set(SITES)


def test_moments_have_a_size_too(config, tmp_path):
    config = replace(config, train=replace(config.train, rounds=1, batchnorm="reestimate"))
    grid = federation(tmp_path / "sites", {MEASURE: in_body(more=torch.zeros(2**19))})
    (line,) = started(config, grid, tmp_path / "run")
    ((site, request, reason),) = [tuple(each.values()) for each in line["rejected"]]
    assert (site, request) == (LIAR, "statistics") and "bytes, and what was asked for has at most" in reason


def test_a_reply_that_is_too_large_is_not_decoded(monkeypatch):
    """Neither its notes nor its tree: 1.5 GB made a server need 3.4 GB."""
    Nodes({})  # in whose name messages are written
    monkeypatch.setattr(flower, "parse_message", lambda text, content: pytest.fail("it was decoded"))
    for text, content in (("{}", b"0" * 3000), ("A" * 3000, b"")):
        notes = flower.ConfigRecord({flower.NOTES: text})
        message = flower.FlowerMessage(
            flower.RecordDict({flower.TREE: flower.arrays(content), flower.NOTES: notes}), 1, "train.ask"
        )
        assert "and what was asked for has at most 2000" in flower._answer(message, 2000)


def good(classes=3, images=20):
    torch.manual_seed(0)
    labels = torch.arange(images) % classes
    return {"loss": 1.5} | classification_metrics(torch.randn(images, classes).softmax(1), labels)


LIES = [
    ("loss", 1e308),
    ("loss", 10**400),
    ("loss", -1),
    ("loss", "1"),
    ("loss", True),
    ("loss", -math.inf),
    ("loss", {}),
    ("loss", None),
]
LIES += [(name, lie) for name in ("accuracy", "f1", "auc") for lie in (2, -0.1, math.nan, "1", True, [0.5], 10**400)]
LIES += [("auc", {}), ("calibration_error", 2), ("calibration_error", None), ("recall", [0.5]), ("recall", 0.5)]
LIES += [("recall", [0.5, 0.5, 7]), ("recall", [0.5, 0.5, [0.5]]), ("recall", None), ("confusion", None)]
LIES += [
    ("confusion", [[1, 0, 0]] * 3),
    ("confusion", [[20, 0, 0], [0, 0, 0]]),
    ("confusion", [[30, -10, 0], [0] * 3, [0] * 3]),
]
LIES += [("confusion", [[math.nan] * 3] * 3), ("confusion", [["7"] * 3] * 3), ("confusion", [[[1]] * 3] * 3)]


@pytest.mark.parametrize(("name", "lie"), LIES)
def test_scores_have_the_names_and_ranges_of_metrics(name, lie):
    assert are_plausible(good(), 3, 20) and are_plausible(good(), 3)
    assert not are_plausible(good() | {name: lie}, 3, 20)


def test_scores_of_an_honest_site_are_plausible():
    """Also those of a model that diverged, of one class, and of more classes than a confusion matrix is kept for."""
    nowhere = torch.full((20, 3), math.nan)
    diverged = {"loss": math.nan} | classification_metrics(nowhere, torch.arange(20) % 3)
    assert are_plausible(diverged, 3, 20) and are_plausible(diverged | {"loss": math.inf}, 3, 20)
    alone = {"loss": 0.0} | classification_metrics(torch.eye(3)[[0, 0]], torch.tensor([0, 0]))
    assert "auc" not in alone and are_plausible(alone, 3, 2)
    assert are_plausible(good(17, 40), 17, 40) and not are_plausible(good(3), 17)
    assert not any(are_plausible(junk, 3) for junk in (None, [], "scores", {}, {"accuracy": 0.5}))
