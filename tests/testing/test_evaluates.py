"""A method declares which entries of its replies are scores of models, so that a site's policy can limit them."""

import pytest

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.experiment import registry
from fedbeyond.site import Site
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.method_settings import SMALL

NAMES = [name for name in registry.REGISTRY["methods"] if not registry.build(name).pooled]
SPECS = [SMALL.get(name, name) for name in NAMES] + [f"fedavg+{name}" for name in registry.REGISTRY["wrappers"]]


class Recorded(Simulator):
    """A simulator that remembers its exchanges."""

    def ask(self, request, envelope):
        replies = super().ask(request, envelope)
        self.__dict__.setdefault("exchanges", []).append((request, envelope, replies))
        return replies


def depending_on_validation(spec):
    """The entries of replies that change if the validation samples do, while all requests are the same."""
    recorded, others = (
        Recorded(registry.build(spec).client, toy.sites(registry.build(spec))),
        toy.sites(registry.build(spec)),
    )
    simulate(registry.build(spec), 1, recorded)
    for site in others:
        images, labels = site.data["val"]
        site.data = {**site.data, "val": (1 - images, (labels + 1) % len(toy.CLASSES))}
    changed = Simulator(registry.build(spec).client, others)
    found = set()
    for request, envelope, replies in recorded.exchanges:
        for client, reply in changed.ask(request, envelope).items():
            pairs = {name: (part, replies[client].body[name]) for name, part in reply.body.items()}
            found |= {(request.kind, name) for name, (new, old) in pairs.items() if digest(new) != digest(old)}
    return found


def digest(part):
    return tree.digest({"part": part})


@pytest.mark.parametrize("spec", SPECS)
def test_scores_of_models_are_declared(spec, monkeypatch):
    method, measured, measure = registry.build(spec), set(), Site.measure

    def recorded(self, model, split="val"):
        measured.add(split)
        return measure(self, model, split)

    monkeypatch.setattr(Site, "measure", recorded)
    simulate(method, 1)
    declared = [(kind, name, sent) for kind, sent_by in method.sends.items() for name, sent in sent_by.items()]
    assert measured == {sent.evaluates for _, _, sent in declared if sent.evaluates}
    if not method.privacy:  # its noise depends on everything in the reply
        scores = {(kind, name) for kind, name, sent in declared if sent.evaluates == "val"}
        assert depending_on_validation(spec) == scores
