"""A site with a policy, and the requests that a curious server sends it; it answers as it does over Flower."""

from fedbeyond import NUMERICS, WIRE, tree
from fedbeyond.flower import enrolment
from fedbeyond.flower.messages import ASK, EVALUATE, MEASURE, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_config import SiteConfig

SITE = "photo"


def site(folder, policy="", **settings):
    """A site with the built-in data and a policy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.toml").write_text(policy)
    own = {"site": SITE, "data": "styles(share=0.05)", "folder": folder / "state", "secret": ""}
    return SiteConfig.parse(own | {"policy": folder / "policy.toml"} | settings)


def notes_of(config, run=None, sources=3):
    versions = {"wire": WIRE, "numerics": NUMERICS, "sources": sources}
    return {"config": enrolment.shared_config(config), "run": run or config.digest()} | versions


def scaled(model, factor):
    """Another model: the server's lever."""
    return tree.map(lambda leaf: leaf * factor if leaf.is_floating_point() else leaf, model)


def train(machine, config, model, number=0, **names):
    envelope = {"kind": "train", "round": number, "ticket": 0, "accepted": {}}
    return respond(machine, Message(ASK, notes_of(config, **names) | envelope, {"model": model}))


def evaluate(machine, config, *models, number=0, names=("model",), **named):
    notes = notes_of(config, **named) | {"round": number, "models": list(names)}
    return respond(machine, Message(EVALUATE, notes, {str(place): each for place, each in enumerate(models)}))


def measure(machine, config, body, number=0):
    return respond(machine, Message(MEASURE, notes_of(config) | {"round": number, "kind": "statistics"}, body))


def has_scores(answer):
    return "scores" in answer.notes
