"""No federation at all: every site trains a model of its own, on its own data. A reference.

What a site reaches that does not take part. The measures reported are the means over the sites' models, each of which
is tried on every domain.
"""

from ..client import training
from ..losses import cross_entropy
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {}


def local(optimizer: Optimizer = plain_sgd) -> Method:
    """Each site on its own; the mean of how their models do."""
    client = training(cross_entropy(), optimizer=optimizer)
    alone = client.handlers["train"]

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        reply, _ = alone(site, private if "model" in private else received, {})
        return reply, reply

    return Method(
        client=client._replace(handlers={"train": train}),
        server=Server(lambda nets: nets | {"models": {}}, round),
        weighting=None,
        judged=lambda state: state["models"],
    )


def round(state: Tree, now: Round) -> Conversation:
    replies = yield Request("train", {"model": state["model"]}, now.clients)
    models = state["models"] | {reply.client: reply.body["model"] for reply in replies}
    return {"model": mean(replies, "model"), "models": models}  # the mean is for whoever asks; no site goes on from it
