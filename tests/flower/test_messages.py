"""Messages and envelopes as bytes and JSON: read back whole, packed once, logged as they were received."""

import json
from hashlib import sha256

import pytest
import torch

from fedbeyond.engine.gate import Gate
from fedbeyond.experiment.checkpoint import pack
from fedbeyond.flower import messages, remote
from fedbeyond.flower.messages import ASK, ENROL, REPLY, Message, parse_message
from fedbeyond.flower.policy import LOG, audit
from fedbeyond.server import Envelope, Request

BODY = {"model": {"params": {"w": torch.arange(3.0)}}}


def test_an_envelope_reads_back_as_what_one_client_must_know():
    envelope = Envelope(3, 17, {"east": 12, "west": 16}, "0123abcd")
    record = json.loads(json.dumps(envelope.to_dict("west")))
    assert Envelope.from_dict(record) == Envelope(3, 17, {"west": 16}, "0123abcd") == envelope.to("west")
    assert Envelope.from_dict(envelope.to_dict("north")).accepted == {}


@pytest.mark.parametrize("wrong", [{"accepted": 3}, {"round": "x"}, {"ticket": None}, {"accepted": {"a": "x"}}])
def test_a_malformed_envelope_raises_what_it_says(wrong):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Envelope.from_dict(Envelope(0, 0, {}, "r").to_dict("a") | wrong)


def test_a_message_is_logged_by_the_bytes_that_were_received(tmp_path):
    sent = Message(ASK, {"run": "r", "round": 0, "kind": "train"}, BODY)
    text = json.dumps(json.loads(sent.text), indent=3)  # the same message, written in another way
    received = parse_message(text, sent.content)
    assert received.text == text != sent.text and received.content is sent.content
    audit(tmp_path, "in", received)
    (line,) = map(json.loads, (tmp_path / LOG).read_text().splitlines())
    assert line["sha256"] == sha256(text.encode() + sent.content).hexdigest()
    assert line["bytes"] == len(text.encode()) + len(sent.content)


def test_a_request_to_several_sites_is_packed_once(monkeypatch):
    packed = []
    for module in (messages, remote):
        monkeypatch.setattr(module, "pack", lambda body: (packed.append(1), pack(body))[1])

    class Echo:
        def exchange(self, sent, limit):
            assert len({id(message.content) for message in sent.values()}) == 1
            notes = {"private_bytes": 0, "weight": 5}
            return {name: Message(REPLY, notes | {"client": name}, BODY) for name in sent}

    facts = {"private_bytes": 0, "images": {"train": 5}}
    enrolled = {name: Message(REPLY, facts) for name in ("east", "north", "west")}
    engine = remote.RemoteEngine(Echo(), {"run": "r"}, enrolled, Gate({}, {}, dict.fromkeys(enrolled, 5)))
    replies = engine.ask(Request("train", BODY, engine.clients), Envelope(0, 0, {}))
    assert len(packed) == 1 and [reply.weight for reply in replies.values()] == [5, 5, 5]


def test_a_message_without_a_tree_can_be_sent():
    hello = Message(ENROL, {"run": "r"})
    assert parse_message(hello.text, hello.content).notes == {"run": "r"}
