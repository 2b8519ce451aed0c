"""The runs that a figure is made of: which there are, which are taken, and what each holds once it is opened."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import spec
from ...classifier import Classifier, Networks, at_once, write
from ...data.partition.assignment import completed, taken
from ...errors import ConfigError, StorageError, nearest
from ...experiment import checkpoint, registry, runner
from ...experiment.build import dataset, division
from ...experiment.config import Config
from ...experiment.runner import configuration
from ...images import Split, pixels
from ...method import the_model
from ...spec import unseen_domains
from ...tree import Tree


class Run(NamedTuple):
    """A finished run, as yet unopened."""

    folder: Path
    config: Config

    def __str__(self) -> str:
        return f"{self.config.method}, {self.config.target} unseen, seed {self.config.seed}"


class Held(NamedTuple):
    """A run with its model and its data."""

    run: Run
    nets: Networks
    classes: tuple[str, ...]
    train: dict[str, Split]  # what the sources' sites train on, by domain
    val: dict[str, Split]  # and what they validate on
    unseen: dict[str, Split]

    @property
    def net(self) -> Classifier:
        """Its model: of the round that source validation chose, until another is written into it."""
        net = self.nets["model"]
        assert isinstance(net, Classifier)
        return net

    @property
    def device(self) -> torch.device:
        """Where its networks are."""
        return next(self.net.parameters()).device

    @property
    def domains(self) -> dict[str, Split]:
        """All domains, those that are unseen last."""
        return self.train | self.unseen

    def name(self, kind: str) -> str:
        """What the files of a figure of this run are called."""
        return "-".join((kind, *runner.place(Path(), self.run.config).parts))

    def server(self) -> Tree:
        """What the server held after the last round."""
        state: Tree = checkpoint.load(self.run.folder / "checkpoint.safetensors")[0]["state"]["server"]
        return state

    def file(self, domain: str, row: int) -> str:
        """What an image of a domain is called: its file's name, or its number where data are arrays."""
        images = self.domains[domain][0]
        number = row if isinstance(images, Tensor) else int(images.rows[row])
        names = dataset(self.run.config.data).note(domain).names
        return names[number] if names else str(number)


def found(
    folders: Iterable[Path], target: str | None = None, seed: int | None = None, methods: Sequence[str] = ()
) -> list[Run]:
    """The finished runs in folders, of one target (none named: the first), by seed and then in the order of methods."""
    runs: dict[tuple[str, str, int], Run] = {}
    for folder in folders:
        here = [path.parent for path in sorted(folder.rglob("config.json")) if (path.parent / "done").exists()]
        if not here:
            raise StorageError(f"{folder} holds no finished run; give a folder that 'fedbeyond run' or 'bench' wrote")
        for place in here:
            config = configuration(place)
            runs.setdefault((config.method, str(config.target), config.seed), Run(place, config))
    kept = list(runs.values())
    target = target or min(str(run.config.target) for run in kept)
    kept = _only(kept, "target", target, {str(run.config.target) for run in kept})
    if seed is not None:
        kept = _only(kept, "seed", str(seed), {str(run.config.seed) for run in kept})
    if methods:
        kept = [run for wanted in methods for run in _of(kept, wanted)]
    return sorted(kept, key=lambda run: run.config.seed)


def _only(runs: list[Run], key: str, wanted: str, there: set[str]) -> list[Run]:
    if wanted not in there:
        raise ConfigError(f"no finished run has {key} {wanted}; {nearest(wanted, there)}")
    return [run for run in runs if str(getattr(run.config, key)) == wanted]


def _of(runs: list[Run], wanted: str) -> list[Run]:
    """Runs of a method, spelled in full or without its options."""
    spelled = spec.spell(spec.parse(wanted))
    exact = [run for run in runs if run.config.method == spelled]
    plain = [run for run in runs if bare(run.config.method) == spelled]
    there = {name for run in runs for name in (run.config.method, bare(run.config.method))}
    if not (exact or plain):
        raise ConfigError(f"no finished run is of {wanted}; {nearest(wanted, there)}")
    return exact or plain


def bare(method: str) -> str:
    """A method's spelling without its options."""
    return "+".join(part.name for part in spec.parse(method))


def alike(runs: Sequence[Run]) -> None:
    """Refuse to compare runs that differ in more than method and seed."""
    settings = {run.config.setting(): run for run in runs}
    if len(settings) > 1:
        one, other = list(settings.values())[:2]
        raise ConfigError(
            f"{one.folder} and {other.folder} were run under two settings (data, network, optimizer or training); "
            "give the folder of one, or choose runs with --method and --seed"
        )


def of_one_model(run: Run) -> bool:
    """Whether a run's method has a global model, and not only one at each site."""
    registry.load_plugins(run.config.plugins)
    return registry.build(run.config.method).judged is the_model


def together(runs: Sequence[Run]) -> str:
    """Runs of one target in half a line."""
    seeds = sorted({run.config.seed for run in runs})
    methods = ", ".join(dict.fromkeys(run.config.method for run in runs))
    return f"{methods}; {runs[0].config.target} unseen, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def labels(runs: Sequence[Run]) -> list[str]:
    """Short names that tell runs apart: methods, with their options and the seed where that is needed."""
    spelled = [run.config.method for run in runs]
    plain = [bare(method) for method in spelled]
    for names in (plain, spelled):
        if len(set(names)) == len(runs):
            return names
    return [f"{method}, seed {run.config.seed}" for method, run in zip(spelled, runs, strict=True)]


def hold(run: Run, device: str = "cpu") -> Held:
    """Open a run: its networks on a device, the chosen round's model in them, and its images by domain."""
    if not of_one_model(run):
        raise ConfigError(f"{run.config.method} has a model of its own at each site; choose others with --method")
    setup = runner.prepare(run.config, device)
    write(setup.nets["model"], checkpoint.load(run.folder / "best.safetensors")[0]).eval()
    domains = dataset(run.config.data)
    clients = division(run.config, domains).clients.values()

    def gathered(part: str, domain: str) -> Split | None:
        rows = [some for client in clients for home, some in getattr(client, part).items() if home == domain]
        return taken(domains, {domain: np.concatenate(rows)}) if sum(map(len, rows)) else None

    train: dict[str, Split] = {}
    val: dict[str, Split] = {}
    for domain in domains.images:
        own, kept = gathered("train", domain), gathered("val", domain)
        if own is not None:
            train[domain] = completed(domains, own, own)
            if kept is not None:
                val[domain] = completed(domains, kept, own)
    unseen = {domain: setup.tests[domain] for domain in unseen_domains(run.config.target)}
    return Held(run, setup.nets, domains.classes, train, val, unseen)


def evenly(labels: Tensor, count: int) -> Tensor:
    """The rows of `count` images, drawn the same way every time, the classes taking turns as long as they last."""
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    turns = torch.zeros_like(drawn)
    for place in labels.unique():
        mine = labels[drawn] == place
        turns[mine] = torch.arange(int(mine.sum()))
    return drawn[turns.argsort(stable=True)[:count]].sort().values


def sample(splits: Iterable[Split], count: int) -> tuple[Tensor, Tensor]:
    """Images and labels, `count` in all, as many of each split as of any other where it has that many."""
    every = list(splits)
    picked = [(split, evenly(split[1], -(-count // len(every)))) for split in every]
    return torch.cat([x[rows] for (x, _), rows in picked]), torch.cat([y[rows] for (_, y), rows in picked])


@torch.no_grad()
def features(held: Held, images: Tensor) -> Tensor:
    """What the head of a model sees of images."""
    net, parts = held.net.eval(), images.split(at_once(held.device))
    return torch.cat([net.features(pixels(x.to(held.device))).cpu() for x in parts])
