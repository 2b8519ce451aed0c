"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

NDAG, Novel Domain Adversarial Generation: FedDAG's local training (see feddag for the complete method).
A generator, shared by all sites, perturbs images so that they look novel to the student but keep their class. The
student learns features that the perturbation does not change. Each site has a teacher, the moving average of its
student; the server averages the teachers.
"""

import logging
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import BelowOne, Method, loss, parameters
from ..classifier import Classifier, Networks, Task, classifiers, for_images, read, write
from ..client import Client, Handler, descend, make_optimizer, no_state
from ..networks.fcn import Fcn
from ..networks.running_statistics import refresh
from ..networks.weights import STD
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

LAG = 0.1  # how far a teacher is behind its student if no decay is given, as a share of a round's steps
IDLE = 2 / 255  # one of 256 levels of images in -1..1: a generator that changes less on average is idle

PRESETS = {"paper": {"learn": "generated", "decay": 0.999}}

Alpha = Annotated[NonNegativeFloat, "strength of the perturbation, alpha in Eq. 2"]
Margin = Annotated[NonNegativeFloat, "distance up to which novelty is rewarded, m in Eq. 1"]
Width = Annotated[PositiveInt, "channels of the generator: 32 is FCN32, 16 is FCN16"]
Decay = Annotated[BelowOne | None, "decay of the teacher; none: steps / (steps + 10), with the steps of a round"]
Kind = Annotated[Literal[1, 2, 3], "who gets the global model: 1 student and teacher, 2 each its own, 3 the student"]
Learn = Annotated[Literal["generated", "both"], "images of the student's cross-entropy: generated, or originals too"]
Statistics = Annotated[Literal["local", "average"], "teacher's BatchNorm: re-estimated on clean images, or averaged"]
Space = Annotated[Literal["imagenet", "input"], "units of alpha: images normalised as ImageNet's, or pixels in -1..1"]
Clamp = Annotated[bool, "clamp generated pixels to -1..1"]
Generate = Callable[[nn.Module, Tensor], Tensor]

# two numbers that measure how novel a site's images were
NOVELTY = loss._replace(like=lambda nets, body: {"perturbation": torch.zeros(()), "distance": torch.zeros(())})


def ndag(
    alpha: Alpha = 0.3,
    margin: Margin = 0.1,
    width: Width = 32,
    decay: Decay = None,
    kind: Kind = 3,
    learn: Learn = "both",
    warmup: Annotated[NonNegativeInt, "first rounds, in which the student learns from original images only"] = 5,
    statistics: Statistics = "local",
    space: Space = "imagenet",
    clamp: Clamp = False,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train a student against a generator of novel styles, and average the teachers that follow the students."""
    shared = ("model", "generator")
    sent = (*shared, "student") if kind == 2 else shared
    train = teaching(perturbing(alpha, space, clamp), margin, decay, kind, learn, statistics, optimizer)

    def round(state: Tree, now: Round) -> Conversation:
        body = {name: state[name] for name in sent} | {"warm": torch.tensor(now.number < warmup)}
        replies = yield Request("train", body, now.clients)
        novelty = mean(replies, "novelty")
        if alpha and now.is_middle:
            warn_if_idle(float(novelty["perturbation"]))
        return {name: mean(replies, name) for name in sent} | {"diagnostics": novelty}

    def init(nets: Tree) -> Tree:
        return nets | {"student": nets["model"]} if kind == 2 else nets

    declared = {name: parameters("model" if name == "student" else name)._replace(since=(name,)) for name in sent}
    return Method(
        client=Client(no_state, {"train": train}),
        server=Server(init, round),
        weighting=uniform,
        networks=for_images("ndag", partial(student_teacher_generator, width)),
        needs={"features"},
        shared=shared,
        sends={"train": {**declared, "novelty": NOVELTY}},
        keeps={"steps", "teacher"} if kind == 3 else {"steps"},
        linear_aggregation=True,
    )


def perturbing(alpha: float, space: Space = "imagenet", clamp: bool = False) -> Generate:
    """Return a function that adds the generator's output to images: at most `alpha`, in units of `space`."""

    def perturb(generator: nn.Module, x: Tensor) -> Tensor:  # Eq. 2
        novel: Tensor = x + alpha * unit(x, space) * generator(x)
        return novel.clamp(-1, 1) if clamp else novel

    return perturb


def unit(x: Tensor, space: Space) -> Tensor:
    """Return how far images in -1..1 move, channel by channel, when they move by 1 in `space`.

    ImageNet's normalisation divides pixels in 0..1 by a standard deviation for each channel. Images without exactly
    three channels use the mean of the three.
    """
    if space == "input":
        return x.new_ones(())
    spread = STD if x.shape[1] == len(STD) else (fmean(STD),)
    return 2 * x.new_tensor(spread).view(-1, 1, 1)


def warn_if_idle(perturbation: float) -> None:
    """Log a warning if the generator has not learnt to change images; noise of `dp` may make the mean negative."""
    if 0 <= perturbation < IDLE:
        logging.getLogger("fedbeyond").warning(
            "ndag: half way through the run the generator changes pixels (-1 to 1) by %.2g on average, less than one "
            "of 256 levels, so that its images do not differ from the originals: use more steps a round, a larger "
            "learning rate or a larger alpha",
            perturbation,
        )


def student_teacher_generator(width: int, task: Task) -> Networks:
    """Build a student, a teacher of the same kind, and a generator."""
    return {**classifiers("model", "teacher")(task), "generator": Fcn(task.shape[0], width)}


def teaching(
    generate: Generate,
    margin: float | None,
    decay: float | None,
    kind: Kind,
    learn: Learn,
    statistics: Statistics,
    optimizer: Optimizer,
) -> Handler:
    """Return the training handler of NDAG and ATS; if `margin` is None, the server sends it with the model."""

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:  # Algorithm 1
        student, teacher, generator = site.nets["model"], site.nets["teacher"], site.nets["generator"]
        assert isinstance(student, Classifier) and isinstance(teacher, Classifier)
        write(student, received["student" if kind == 2 else "model"])
        has_teacher = kind == 3 and "teacher" in private  # the teacher stays at its site
        write(teacher, private["teacher"] if has_teacher else received["model"]).eval()
        write(generator, received["generator"])
        step_student = make_optimizer(optimizer, student.parameters(), site)
        step_generator = make_optimizer(optimizer, generator.parameters(), site)
        steps, warm = int(private.get("steps", torch.zeros(()))), bool(received["warm"])
        final_decay = teacher_decay(site.steps) if decay is None else decay
        bound = float(received["margin"]) if margin is None else margin
        changes: list[Tensor] = []  # for each step: the mean change of the images, and the distance of their features

        def step(x: Tensor, y: Tensor) -> None:
            with torch.no_grad():
                target = teacher.features(x)
            change = torch.zeros(2)

            def generator_loss() -> Tensor:
                nonlocal change
                novel = generate(generator, x)
                loss, far = novelty(student, novel, y, target, bound)
                change = torch.stack(((novel - x).abs().mean(), far.mean())).detach().float()
                return loss

            student.eval()  # frozen, its running statistics included
            descend(step_generator, generator_loss)  # line 3
            changes.append(change)
            student.train()
            if warm:  # in warm-up rounds the student learns from the original images only
                descend(step_student, lambda: F.cross_entropy(student(x), y), student)
                return
            with torch.no_grad():
                novel = generate(generator, x)
            old = x if learn == "both" else None
            descend(step_student, lambda: student_loss(student, novel, y, target, old), student)  # line 4

        for batch in site.batches():
            step(*batch.merged)
            steps += 1
            follow(teacher, student, min(1 - 1 / (steps + 1), final_decay))  # line 5
        if statistics == "local":
            refresh(teacher, site.clean())
        perturbation, apart = torch.stack(changes).mean(0)
        reply = {"model": read(teacher), "generator": read(generator)}
        reply |= {"novelty": {"perturbation": perturbation, "distance": apart}}
        kept = {"steps": torch.tensor(steps)} | ({"teacher": reply["model"]} if kind == 3 else {})
        return (reply | {"student": read(student)} if kind == 2 else reply), kept  # line 7

    return train


def teacher_decay(steps: int) -> float:
    """Return the decay with which a teacher follows nine tenths of a round's progress, for any number of steps.

    If the student moves by one in each of n steps, its moving average is d / (1 - d) * (1 - d^n) behind at the end.
    With d = n / (n + 10) that is about a tenth of n.
    """
    return LAG * steps / (LAG * steps + 1)


def distance(target: Tensor, h: Tensor) -> Tensor:
    """Compute, for each image, the squared distance of the teacher's and the student's features, normalised to 1."""
    return (F.normalize(target) - F.normalize(h)).square().sum(1)


def novelty(
    student: Classifier, novel: Tensor, y: Tensor, target: Tensor, margin: float
) -> tuple[Tensor, Tensor]:  # Eqs. 1 and 3
    """Return the generator's loss (images keep their class and look novel, up to the margin), and the distances."""
    h = student.features(novel)
    far = distance(target, h)
    return F.cross_entropy(student.head(h), y) - far.clamp(max=margin).mean(), far


def student_loss(
    student: Classifier, novel: Tensor, y: Tensor, target: Tensor, old: Tensor | None = None
) -> Tensor:  # Eqs. 3 and 4
    """Compute the student's loss: novel images have their class (L_cls) and the teacher's features (L_sim)."""
    h = student.features(novel if old is None else torch.cat((novel, old)))  # one pass: one batch for BatchNorm
    error = F.cross_entropy(student.head(h), y if old is None else y.repeat(2))
    return error + distance(target, h[: len(novel)]).mean()


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """Move the teacher's parameters and buffers towards the student's; copy counters."""
    pairs = list(zip(teacher.state_dict().values(), student.state_dict().values(), strict=True))
    floats = [pair for pair in pairs if pair[0].is_floating_point()]
    torch._foreach_lerp_([old for old, _ in floats], [new for _, new in floats], 1 - decay)
    for old, new in pairs:
        if not old.is_floating_point():
            old.copy_(new)
