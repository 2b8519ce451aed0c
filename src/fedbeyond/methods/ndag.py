"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

NDAG, Novel Domain Adversarial Generation: FedDAG's local training (see feddag for the whole).
A generator, shared by all sites, perturbs images so that they look novel to the student but keep their class; the
student learns not to be moved by that; a teacher at each site, the moving average of its student, is what is averaged.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..client import Client, Handler, descend, nothing, stepper
from ..data.site import Site
from ..method import Method, parameters
from ..nets import Classifier, Networks, Task, for_images, read, write
from ..nets.fcn import Fcn
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..tree import Tree

LEFT = 0.1  # of a teacher after a round, if no decay is given

PRESETS = {"paper": {"learn": "generated", "decay": 0.999}}

Learn = Literal["generated", "both"]


def ndag(
    alpha: Annotated[float, Field(ge=0)] = 0.3,
    margin: Annotated[float, Field(ge=0)] = 0.1,
    width: Annotated[int, Field(gt=0)] = 32,
    decay: Annotated[float, Field(ge=0, lt=1)] | None = None,
    kind: Literal[1, 2, 3] = 3,
    learn: Learn = "both",
    warmup: Annotated[int, Field(ge=0)] = 5,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """A generator of novel styles against a student that is not to be moved by them, and a teacher that follows it."""
    shared = ("model", "generator")
    sent = (*shared, "student") if kind == 2 else shared

    def novel(generator: nn.Module, x: Tensor) -> Tensor:  # Eq. 2
        return x + alpha * generator(x)  # type: ignore[no-any-return]

    def round(state: Tree, now: Round) -> Conversation:
        warm = torch.tensor(now.number < warmup)
        replies = yield Request("train", state | {"warm": warm}, now.clients)
        return {name: mean(replies, name) for name in sent}

    def begin(nets: Tree) -> Tree:
        return nets | {"student": nets["model"]} if kind == 2 else nets

    promised = {name: parameters("model" if name == "student" else name)._replace(since=(name,)) for name in sent}
    return Method(
        client=Client(nothing, {"train": teaching(novel, margin, decay, kind, learn, optimizer)}),
        server=Server(begin, round),
        weighting=uniform,
        networks=for_images("ndag", trio(width)),
        shared=shared,
        sends={"train": promised},
        sums=True,
    )


def trio(width: int) -> Callable[[Task], Networks]:
    """A student, a teacher of its kind, and a generator."""

    def networks(task: Task) -> Networks:
        model, teacher = task.network(task), task.network(task)
        return {"model": model, "teacher": teacher, "generator": Fcn(task.shape[0], width)}

    return networks


def teaching(
    generate: Callable[[nn.Module, Tensor], Tensor],
    margin: float | None,
    decay: float | None,
    kind: Literal[1, 2, 3],
    learn: Learn,
    optimizer: Optimizer,
) -> Handler:
    """A generator against a student, and a teacher that follows it; without a margin, it comes with the model."""

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:  # Algorithm 1
        student, teacher, generator = site.nets["model"], site.nets["teacher"], site.nets["generator"]
        assert isinstance(student, Classifier) and isinstance(teacher, Classifier)
        write(student, received["student" if kind == 2 else "model"])
        own = kind == 3 and "teacher" in private  # the teacher stays at its site
        write(teacher, private["teacher"] if own else received["model"]).eval()
        write(generator, received["generator"])
        step_student = stepper(optimizer, student.parameters(), site)
        step_generator = stepper(optimizer, generator.parameters(), site)
        steps, warm = int(private.get("steps", torch.zeros(()))), bool(received["warm"])
        slowest = LEFT ** (1 / site.steps) if decay is None else decay
        furthest = float(received["margin"]) if margin is None else margin

        def on(x: Tensor, y: Tensor) -> None:
            with torch.no_grad():
                seen = teacher.features(x)
            student.eval()  # frozen, its statistics as well
            descend(step_generator, lambda: novelty(student, generate(generator, x), y, seen, furthest))  # line 3
            student.train()
            if warm:  # the student learns from images as they are, for the time being
                descend(step_student, lambda: F.cross_entropy(student(x), y), student)
                return
            with torch.no_grad():
                novel = generate(generator, x)
            old = x if learn == "both" else None
            descend(step_student, lambda: steadiness(student, novel, y, seen, old), student)  # line 4

        for batch in site.batches():
            on(*batch.merged)
            steps += 1
            follow(teacher, student, min(1 - 1 / (steps + 1), slowest))  # line 5
        told = {"model": read(teacher), "generator": read(generator)}
        kept = {"steps": torch.tensor(steps)} | ({"teacher": told["model"]} if kind == 3 else {})
        return (told | {"student": read(student)} if kind == 2 else told), kept  # line 7

    return train


def distance(seen: Tensor, h: Tensor) -> Tensor:
    """Of each image: how far what the student sees in it is from what the teacher sees, lengths aside."""
    return (F.normalize(seen) - F.normalize(h)).square().sum(1)


def novelty(student: Classifier, novel: Tensor, y: Tensor, seen: Tensor, margin: float) -> Tensor:  # Eqs. 1 and 3
    """What a generator lowers: images of the same class (L_cls) that look new (L_dis), each up to the margin."""
    h = student.features(novel)
    return F.cross_entropy(student.head(h), y) - distance(seen, h).clamp(max=margin).mean()


def steadiness(
    student: Classifier, novel: Tensor, y: Tensor, seen: Tensor, old: Tensor | None = None
) -> Tensor:  # Eqs. 3 and 4
    """What a student lowers: novel images are of their class (L_cls) and look as the teacher sees the old (L_sim)."""
    h = student.features(novel if old is None else torch.cat((novel, old)))  # one pass: BatchNorm sees them together
    error = F.cross_entropy(student.head(h), y if old is None else y.repeat(2))
    return error + distance(seen, h[: len(novel)]).mean()


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """The teacher's numbers move towards the student's; counters are taken over."""
    pairs = list(zip(teacher.state_dict().values(), student.state_dict().values(), strict=True))
    floats = [pair for pair in pairs if pair[0].is_floating_point()]
    torch._foreach_lerp_([ours for ours, _ in floats], [theirs for _, theirs in floats], 1 - decay)
    for ours, theirs in pairs:
        if not ours.is_floating_point():
            ours.copy_(theirs)
