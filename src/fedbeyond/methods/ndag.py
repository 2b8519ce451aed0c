"""NDAG, Novel Domain Adversarial Generation: FedDAG's local training (see feddag for the whole).

Che, Wu, Jin, Xia, Chen: FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

A generator, shared by all sites, perturbs images so that they look novel to the student but keep their class; the
student learns not to be moved by that; a teacher at each site, the moving average of its student, is what is averaged.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..client import Client, descend, nothing, stepper
from ..data.site import Site
from ..method import Method, parameters
from ..nets import Classifier, Networks, Task, read, write
from ..nets.fcn import Fcn
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}


def ndag(
    alpha: Annotated[float, Field(ge=0)] = 0.3,
    margin: Annotated[float, Field(ge=0)] = 0.1,
    width: Annotated[int, Field(gt=0)] = 32,
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999,
    kind: Literal[1, 2, 3] = 3,
    learn: Literal["generated", "both"] = "generated",
    warmup: Annotated[int, Field(ge=0)] = 5,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """A generator of novel styles against a student that is not to be moved by them, and a teacher that follows it."""
    shared = ("model", "generator")
    sent = (*shared, "student") if kind == 2 else shared

    def networks(task: Task) -> Networks:
        model, teacher = task.network(task), task.network(task)
        return {"model": model, "teacher": teacher, "generator": Fcn(task.shape[0], width)}

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

        def distance(seen: Tensor, h: Tensor) -> Tensor:  # of each image: Eq. 4, and Eq. 1 before its bound
            return (F.normalize(seen) - F.normalize(h)).square().sum(1)

        def novelty(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:  # line 3: Eqs. 1 to 3
            h = student.features(x + alpha * generator(x))
            return F.cross_entropy(student.head(h), y) - distance(seen, h).clamp(max=margin).mean()

        def steadiness(x: Tensor, y: Tensor, seen: Tensor, novel: Tensor) -> Tensor:  # line 4: Eqs. 3 and 4
            if warm:
                return F.cross_entropy(student(x), y)
            h = student.features(novel)
            loss = F.cross_entropy(student.head(h), y) + distance(seen, h).mean()
            return (loss + F.cross_entropy(student(x), y)) / 2 if learn == "both" else loss

        def on(x: Tensor, y: Tensor) -> None:
            with torch.no_grad():
                seen = teacher.features(x)
            student.eval()  # frozen, its statistics as well
            descend(step_generator, lambda: novelty(x, y, seen))
            student.train()
            with torch.no_grad():
                novel = x + alpha * generator(x)
            descend(step_student, lambda: steadiness(x, y, seen, novel), student)

        for batch in site.batches():
            on(*batch.merged)
            steps += 1
            follow(teacher, student, min(1 - 1 / (steps + 1), decay))  # line 5
        told = {"model": read(teacher), "generator": read(generator)}
        kept = {"steps": torch.tensor(steps)} | ({"teacher": told["model"]} if kind == 3 else {})
        return (told | {"student": read(student)} if kind == 2 else told), kept  # line 7

    def round(state: Tree, now: Round) -> Conversation:
        warm = torch.tensor(now.number < warmup)
        replies = yield Request("train", state | {"warm": warm}, now.clients)
        return {name: mean(replies, name) for name in sent}

    def begin(nets: Tree) -> Tree:
        return nets | {"student": nets["model"]} if kind == 2 else nets

    promised = {name: parameters("model" if name == "student" else name) for name in sent}
    return Method(
        client=Client(nothing, {"train": train}),
        server=Server(begin, round),
        weighting=uniform,
        networks=networks,
        shared=shared,
        sends={"train": promised},
    )


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """The teacher's numbers move towards the student's; counters are taken over."""
    pairs = list(zip(teacher.state_dict().values(), student.state_dict().values(), strict=True))
    floats = [pair for pair in pairs if pair[0].is_floating_point()]
    torch._foreach_lerp_([ours for ours, _ in floats], [theirs for _, theirs in floats], 1 - decay)
    for ours, theirs in pairs:
        if not ours.is_floating_point():
            ours.copy_(theirs)
