"""What everyone is asked to do, exactly alike: the network, the data, who takes part, the order of the batches.

A cell is a JSON file; a runner is started with its path, notes an instant at the end of every round and leaves the
final weights beside it. Data, first weights and orders come from seeds, so every process makes the same ones for
itself. The network has no BatchNorm: pfl averages parameters only, and running statistics would differ. It is smooth:
at a kink, sums that were rounded in another order would lead two runs apart by more than rounding.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


class Cell(NamedTuple):
    """One thing that is measured."""

    name: str
    clients: int = 3
    asked: int = 0  # clients that take part in a round; 0: all
    steps: int = 20  # 0: a client sends back what it received
    batch: int = 32
    pixels: int = 32
    network: str = "convnet"  # or "stack": layers that are only carried about
    width: int = 16
    rounds: int = 5  # that count, after one to warm up
    turns: int = 1  # of everyone, one after the other: where differences are small, the machine's moods must not count
    group: str = ""  # cells of one group, which stand beside each other, take turns: they are compared
    cores: int = 1  # that the whole process tree may use, each client with one thread
    limit: float = 120.0  # seconds until a runner is stopped
    files: bool = False  # images are read from a folder of domain/class/image
    root: str = ""  # that folder
    lr: float = 0.05

    @property
    def size(self) -> int:
        """Images at each client: a round is one epoch of them."""
        return max(1, self.steps) * self.batch

    @property
    def total(self) -> int:
        """All rounds, with the one to warm up."""
        return self.rounds + 1


def given() -> tuple[Cell, Path]:
    """The cell that this process was started for, and the folder for what comes of it."""
    torch.set_num_threads(1)
    path = Path(sys.argv[1])
    return read(path), path.parent


@cache
def read(path: Path) -> Cell:
    """A cell from its file."""
    return Cell(**json.loads(path.read_text()))


def network(cell: Cell) -> nn.Module:
    """The network with its first weights."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        if cell.network == "stack":  # about as many tensors as a small ResNet has
            return nn.Sequential(*(nn.Linear(cell.width, cell.width) for _ in range(20)))
        widths, body = (3, cell.width, 2 * cell.width, 4 * cell.width), nn.Sequential()
        for wide, wider in pairwise(widths):
            body.extend([nn.Conv2d(wide, wider, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2)])
        return body.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)])


@cache
def scratch(cell: Cell) -> nn.Module:
    """A network of a process's own, for writing received weights into."""
    return network(cell)


def seeded(*numbers: int) -> torch.Generator:
    """A stream for a purpose."""
    return torch.Generator().manual_seed(sum(number * 10_007**place for place, number in enumerate(numbers)))


def participants(cell: Cell, number: int) -> list[int]:
    """Who takes part in a round."""
    drawn = torch.randperm(cell.clients, generator=seeded(number, 1))[: cell.asked or cell.clients]
    return sorted(drawn.tolist())


def order(cell: Cell, client: int, number: int) -> list[Tensor]:
    """The batches of a client in a round, as indices into its images."""
    rows = torch.randperm(cell.size, generator=seeded(number, client, 2))
    return list(rows.split(cell.batch))[: cell.steps]


@cache
def images(cell: Cell, client: int) -> tuple[Tensor, Tensor]:
    """A client's images, ready to be used, and labels; kept in memory."""
    rng, labels = seeded(client, 3), torch.arange(cell.size) % CLASSES
    noise = torch.randn((cell.size, 3, cell.pixels, cell.pixels), generator=rng)
    return noise + 0.2 * labels.view(-1, 1, 1, 1), labels


class Files(Dataset[tuple[Tensor, int]]):
    """A client's images as most code reads them: decoded with PIL whenever one is asked for."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*.jpg"))
        self.labels = {name: label for label, name in enumerate(sorted({path.parent.name for path in self.paths}))}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(127.5).sub_(1), self.labels[path.parent.name]


def domain(client: int) -> str:
    """The folder of a client."""
    return f"domain_{client:03}"


@cache
def files(cell: Cell, client: int) -> Files:
    """A client's images on disk."""
    return Files(Path(cell.root) / domain(client))


def draw(cell: Cell, root: Path) -> None:
    """Fill a folder with smooth noise: files as large as photos of so many pixels."""
    rng = np.random.default_rng(0)
    for client in range(cell.clients):
        for place in range(cell.size):
            folder = root / domain(client) / f"class_{place % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            coarse.resize((cell.pixels,) * 2, Image.Resampling.BICUBIC).save(folder / f"{place:05}.jpg")


def batches(cell: Cell, client: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What a client sees in a round."""
    if cell.files:
        rows = [index.tolist() for index in order(cell, client, number)]
        yield from DataLoader(files(cell, client), batch_sampler=rows)
    else:
        x, y = images(cell, client)
        yield from ((x[index], y[index]) for index in order(cell, client, number))


def train(net: nn.Module, cell: Cell, client: int, number: int) -> None:
    """Local training as one would write it by hand."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=cell.lr)
    for x, y in batches(cell, client, number):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


class Clock:
    """Instants, on a clock that all processes of a machine share: when the first round begins, when each one ends.

    Each is on disk at once, so that a runner that is stopped has not run for nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "instants"

    def note(self) -> None:
        """It is now."""
        with open(self.path, "a") as file:
            file.write(f"{time.monotonic()!r}\n")


def save(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Leave the final weights for comparison."""
    np.savez(folder / "weights.npz", **{name: np.asarray(value.detach()) for name, value in weights.items()})
