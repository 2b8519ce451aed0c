"""One client's world: its data, its networks, its random stream. Nothing here is ever sent."""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ._precision import in_full
from .batch import Augment, Batch, Sampler, plain, shuffled
from .classifier import Networks, measure, write
from .images import Split, pixels
from .optimizers import Schedule, constant
from .timer import part
from .tree import Tree


def derive(*parts: object) -> int:
    """A seed that depends on what it is for, not on what was drawn before."""
    key = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:7], "big")


class Site:
    """A client as its handlers see it."""

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
        origin: Tensor | None = None,
        secret: bytes = b"",
    ) -> None:
        self.name, self.data, self.nets, self.seed, self.device = name, data, nets, seed, device
        self.augment, self.sampler, self.batch_size, self.epochs = augment, sampler, batch_size, epochs
        self.rounds, self.schedule, self.pace = rounds, schedule, 1.0
        self.origin = origin  # the domain of each training image, where those of several are pooled
        self.secret = secret  # mixed into noise that nobody else may know; none in a simulation
        self.rng = torch.Generator()
        self.keeps_slopes = False  # whether the last gradient stays in the networks, for who looks at it afterwards

    @property
    def size(self) -> int:
        """How many images it trains on."""
        return len(self.data["train"][1])

    @property
    def steps(self) -> int:
        """How many batches it trains on in a round."""
        return sum(1 for _ in self.sampler(self.data["train"][1], self.epochs, self.batch_size, torch.Generator()))

    def reseed(self, round_number: int, kind: str) -> "Site":
        """Make the randomness of an answer depend on what is asked, not on what was answered before."""
        self.pace = self.schedule(round_number / self.rounds)  # factor on the learning rate
        seed = derive(self.seed, round_number, self.name, kind)
        self.rng.manual_seed(seed)
        torch.default_generator.manual_seed(seed)  # dropout and the like know no other stream
        if torch.device(self.device).type == "cuda":
            torch.cuda.manual_seed_all(seed)
        return self

    def batches(self, epochs: int | None = None) -> Iterator[Batch]:
        """The training images, sampled and augmented."""
        x, y = self.data["train"]
        for index in self.sampler(y, self.epochs if epochs is None else epochs, self.batch_size, self.rng):
            with part("data"):
                batch = Batch(pixels(x[index].to(self.device)), y[index].to(self.device))
                if self.origin is not None:
                    batch = batch._replace(origin=self.origin[index].to(self.device))
            with part("augmentation"), in_full(self.device):
                batch = self.augment(batch, self.rng)
            yield batch

    def clean(self, count: int = 256) -> Tensor:
        """Return up to `count` training images without augmentation: the same ones whenever it is called."""
        images, labels = self.data["train"]
        rng = torch.Generator().manual_seed(derive(self.seed, self.name, "clean"))  # self.rng does not advance
        index = torch.randperm(len(labels), generator=rng)[:count].sort().values
        return pixels(images[index].to(self.device))

    def measure(self, model: Tree, split: str = "val") -> dict[str, Tensor]:
        """Loss and accuracy of a model on one of the site's splits."""
        return measure(write(self.nets["model"], model), self.data[split])

    def loss(self, model: Tree, split: str = "val") -> Tensor:
        """Mean cross-entropy of a model on one of the site's splits."""
        return self.measure(model, split)["loss"]
