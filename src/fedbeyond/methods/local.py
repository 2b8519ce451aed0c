"""No federation at all: every site trains a model of its own, on its own data. A reference.

It shows what a site reaches without taking part. Every site's model is evaluated on every domain, and the means over
the models are reported.
"""

from .._method import Method
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..site import Site
from ..tree import Tree


def local(optimizer: Optimizer = plain_sgd) -> Method:
    """Train a separate model at each site, and report the mean of their measures."""
    client = training(cross_entropy(), optimizer=optimizer)
    train_alone = client.handlers["train"]

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        reply, _ = train_alone(site, private if "model" in private else received, {})
        return reply, reply

    return Method(
        client=client.also(train=train),
        server=Server(lambda nets: nets | {"models": {}}, round),
        weighting=None,
        keeps={"model"},
        eval_models=lambda state: state["models"],
        inputs_unchanged=True,
    )


def round(state: Tree, now: Round) -> Conversation:
    """Train at each site and store its model."""
    replies = yield Request("train", {"model": state["model"]}, now.clients)
    models = state["models"] | {reply.client: reply.body["model"] for reply in replies}
    return {"model": mean(replies, "model"), "models": models}  # no site trains from the mean
