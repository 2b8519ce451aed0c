"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

NDAG, Novel Domain Adversarial Generation: FedDAG's local training (see feddag for the whole).
A generator, shared by all sites, perturbs images so that they look novel to the student but keep their class; the
student learns not to be moved by that; a teacher at each site, the moving average of its student, is what is averaged.
"""

import logging
from collections.abc import Callable
from statistics import fmean
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..classifier import Classifier, Networks, Task, for_images, read, write
from ..client import Client, Handler, descend, nothing, stepper
from ..method import Method, Sent, parameters
from ..networks.fcn import Fcn
from ..networks.statistics import refresh
from ..networks.weights import STD
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

LAG = 0.1  # of a round's steps, by which a teacher is behind its student if no decay is given
IDLE = 2 / 255  # a mean change of images between -1 and 1 that is less than one of their 256 levels

PRESETS = {"paper": {"learn": "generated", "decay": 0.999}}

Learn = Literal["generated", "both"]
Statistics = Literal["local", "average"]
Space = Literal["imagenet", "input"]
Generate = Callable[[nn.Module, Tensor], Tensor]


def ndag(
    alpha: Annotated[float, Field(ge=0)] = 0.3,
    margin: Annotated[float, Field(ge=0)] = 0.1,
    width: Annotated[int, Field(gt=0)] = 32,
    decay: Annotated[float, Field(ge=0, lt=1)] | None = None,
    kind: Literal[1, 2, 3] = 3,
    learn: Learn = "both",
    warmup: Annotated[int, Field(ge=0)] = 5,
    statistics: Statistics = "local",
    space: Space = "imagenet",
    clamp: bool = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """A generator of novel styles against a student that is not to be moved by them, and a teacher that follows it."""
    shared = ("model", "generator")
    sent = (*shared, "student") if kind == 2 else shared
    train = teaching(perturbing(alpha, space, clamp), margin, decay, kind, learn, statistics, optimizer)

    def round(state: Tree, now: Round) -> Conversation:
        body = {name: state[name] for name in sent} | {"warm": torch.tensor(now.number < warmup)}
        replies = yield Request("train", body, now.clients)
        novelty = mean(replies, "novelty")
        if alpha and now.number == now.total // 2:
            warn_if_idle(float(novelty["perturbation"]))
        return {name: mean(replies, name) for name in sent} | {"told": novelty}

    def begin(nets: Tree) -> Tree:
        return nets | {"student": nets["model"]} if kind == 2 else nets

    promised = {name: parameters("model" if name == "student" else name)._replace(since=(name,)) for name in sent}
    return Method(
        client=Client(nothing, {"train": train}),
        server=Server(begin, round),
        weighting=uniform,
        networks=for_images("ndag", trio(width)),
        shared=shared,
        sends={"train": {**promised, "novelty": NOVELTY}},
        sums=True,
    )


def perturbing(alpha: float, space: Space = "imagenet", clamp: bool = False) -> Generate:
    """Add what a generator makes of images to them: at most `alpha`, in units of `space`."""

    def novel(generator: nn.Module, x: Tensor) -> Tensor:  # Eq. 2
        made: Tensor = x + alpha * unit(x, space) * generator(x)
        return made.clamp(-1, 1) if clamp else made

    return novel


def unit(x: Tensor, space: Space) -> Tensor:
    """Return how far images in -1..1 move, channel by channel, when they move by 1 in `space`.

    ImageNet's normalisation divides pixels in 0..1 by a standard deviation; images that have not three channels take
    the mean of the three.
    """
    if space == "input":
        return x.new_ones(())
    spread = STD if x.shape[1] == len(STD) else (fmean(STD),)
    return 2 * x.new_tensor(spread).view(-1, 1, 1)


def warn_if_idle(perturbation: float) -> None:
    """Warn about a generator that has not learnt to change images; noise of `dp` may make the mean negative."""
    if 0 <= perturbation < IDLE:
        logging.getLogger("fedbeyond").warning(
            "ndag: half way through the run the generator changes pixels (-1 to 1) by %.2g on average, less than one "
            "of 256 levels, so that its images are the old ones: give it more steps a round, a larger learning rate "
            "or a larger alpha",
            perturbation,
        )


def trio(width: int) -> Callable[[Task], Networks]:
    """A student, a teacher of its kind, and a generator."""

    def networks(task: Task) -> Networks:
        model, teacher = task.network(task), task.network(task)
        return {"model": model, "teacher": teacher, "generator": Fcn(task.shape[0], width)}

    return networks


def teaching(
    generate: Generate,
    margin: float | None,
    decay: float | None,
    kind: Literal[1, 2, 3],
    learn: Learn,
    statistics: Statistics,
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
        slowest = lagging(site.steps) if decay is None else decay
        furthest = float(received["margin"]) if margin is None else margin
        changes: list[Tensor] = []  # of each step: how far images moved, and how far their features are apart

        def on(x: Tensor, y: Tensor) -> None:
            with torch.no_grad():
                seen = teacher.features(x)
            latest = torch.zeros(2)

            def disguise() -> Tensor:
                nonlocal latest
                novel = generate(generator, x)
                loss, far = novelty(student, novel, y, seen, furthest)
                latest = torch.stack(((novel - x).abs().mean(), far.mean())).detach().float()
                return loss

            student.eval()  # frozen, its statistics as well
            descend(step_generator, disguise)  # line 3
            changes.append(latest)
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
        if statistics == "local":
            refresh(teacher, site.clean())
        perturbation, apart = torch.stack(changes).mean(0)
        reply = {"model": read(teacher), "generator": read(generator)}
        reply |= {"novelty": {"perturbation": perturbation, "distance": apart}}
        kept = {"steps": torch.tensor(steps)} | ({"teacher": reply["model"]} if kind == 3 else {})
        return (reply | {"student": read(student)} if kind == 2 else reply), kept  # line 7

    return train


def changes_of(nets: Tree, body: Tree) -> Tree:
    """Return an example of the two numbers that say how novel a site's images were."""
    return {"perturbation": torch.zeros(()), "distance": torch.zeros(())}


NOVELTY = Sent("scalars", changes_of)


def lagging(steps: int) -> float:
    """Return the decay with which a teacher hands on nine tenths of a round's progress, whatever its steps are.

    Behind a student that moves by one in each of n steps, a moving average is d / (1 - d) * (1 - d^n) behind at the
    end. With d = n / (n + 10) that is a tenth of n.
    """
    return LAG * steps / (LAG * steps + 1)


def distance(seen: Tensor, h: Tensor) -> Tensor:
    """Of each image: how far what the student sees in it is from what the teacher sees, lengths aside."""
    return (F.normalize(seen) - F.normalize(h)).square().sum(1)


def novelty(
    student: Classifier, novel: Tensor, y: Tensor, seen: Tensor, margin: float
) -> tuple[Tensor, Tensor]:  # Eqs. 1 and 3
    """Return what a generator lowers (images keep their class and look new, up to the margin), and the distances."""
    h = student.features(novel)
    far = distance(seen, h)
    return F.cross_entropy(student.head(h), y) - far.clamp(max=margin).mean(), far


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
