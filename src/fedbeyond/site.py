"""A site as its handlers see it: data, networks, random generator. Nothing in here is ever sent."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from . import timer
from .batch import Augment, Batch, Sampler, plain, shuffled
from .classifier import Networks, measure, write
from .images import Split, pixels
from .optimizers import Schedule, constant
from .tree import Tree

COPIES = "copies"  # a split with augmented copies of each training image, if they are cached


def derive(*parts: object) -> int:
    """Derive a seed from its purpose (`parts`), independent of all numbers drawn before."""
    key = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:7], "big")


def forked_rng() -> AbstractContextManager[None]:
    """Restore torch's random state at the end of the block; that of GPUs only if CUDA is in use.

    Asking for the state of a GPU initialises CUDA, after which no worker process can be forked.
    """
    return torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ())


class Site:
    """A client's data, networks, settings and random generator, as its handlers see them."""

    def __init__(
        self,
        name: str,
        data: Mapping[str, Split],
        nets: Networks,
        *,
        augment: Augment = plain,
        sampler: Sampler = shuffled,
        batch_size: int = 32,
        epochs: int = 1,
        seed: int = 0,
        rounds: int = 1,
        schedule: Schedule = constant(),  # noqa: B008 (a plain function)
        device: str = "cpu",
        mixed_precision: bool = False,
        origin: Tensor | None = None,
        secret: bytes = b"",
    ) -> None:
        self.name, self.data, self.nets, self.seed, self.device = name, data, nets, seed, device
        self.augment, self.sampler, self.batch_size, self.epochs = augment, sampler, batch_size, epochs
        self.rounds = rounds  # of the run; a method whose results depend on it declares `uses_total`
        self.schedule, self.lr_factor = schedule, 1.0
        self.mixed_precision = mixed_precision  # handlers compute products in bfloat16
        self.origin = origin  # domain of each training image, if data of several domains are pooled
        self.secret = secret  # makes the noise of dp unpredictable for others; empty in a simulation
        self.rng = torch.Generator()
        self.keeps_gradients = False  # True: the last gradients stay in the networks after training

    @property
    def size(self) -> int:
        """The number of training images."""
        return len(self.data["train"][1])

    @property
    def steps(self) -> int:
        """The number of training batches in a round."""
        return sum(1 for _ in self.sampler(self.data["train"][1], self.epochs, self.batch_size, torch.Generator()))

    def reseed(self, round_number: int, kind: str) -> "Site":
        """Seed all random generators from (seed, round, site, kind of request), independent of earlier requests."""
        self.lr_factor = self.schedule(round_number / self.rounds)  # factor on the learning rate
        seed = derive(self.seed, round_number, self.name, kind)
        self.rng.manual_seed(seed)
        torch.default_generator.manual_seed(seed)  # dropout and similar layers use the global generator
        if torch.device(self.device).type == "cuda":
            torch.cuda.manual_seed_all(seed)
        return self

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        """Within the block, compute products in bfloat16, or not, if the run uses mixed precision."""
        if not self.mixed_precision:
            return nullcontext()
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled, cache_enabled=False)  # no cache: parameters change inside

    def batches(self, epochs: int | None = None) -> Iterator[Batch]:
        """Yield batches of training images, sampled and augmented."""
        x, y = self.data.get(COPIES, self.data["train"])
        for index in self.sampler(y, self.epochs if epochs is None else epochs, self.batch_size, self.rng):
            with timer.section("data"):
                batch = Batch(pixels(x[index].to(self.device)), y[index].to(self.device))
                if self.origin is not None:
                    batch = batch._replace(origin=self.origin[index].to(self.device))
            with timer.section("augmentation"), self.autocast(False):
                batch = self.augment(batch, self.rng)
            yield batch

    def clean(self, count: int = 256) -> Tensor:
        """Return up to `count` training images without augmentation: the same images at every call."""
        images, labels = self.data["train"]
        rng = torch.Generator().manual_seed(derive(self.seed, self.name, "clean"))  # so that self.rng does not advance
        index = torch.randperm(len(labels), generator=rng)[:count].sort().values
        return pixels(images[index].to(self.device))

    def measure(self, model: Tree, split: str = "val") -> dict[str, Tensor]:
        """Evaluate a model on one of the site's splits; return its loss and accuracy."""
        return measure(write(self.nets["model"], model), self.data[split])

    def loss(self, model: Tree, split: str = "val") -> Tensor:
        """Return the mean cross-entropy of a model on one of the site's splits."""
        return self.measure(model, split)["loss"]
