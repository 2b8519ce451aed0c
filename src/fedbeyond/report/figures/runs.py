"""Find the finished runs that a figure is drawn from, select among them, and open them with their models and data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ... import spec
from ..._method import global_model
from ...classifier import Classifier, Networks, ensure_provides, eval_batch_size, write
from ...data.partition.assignment import preprocess_split, select_rows
from ...errors import ConfigError, StorageError, nearest
from ...experiment import checkpoint, registry, run_folder
from ...experiment.build import dataset, partition
from ...experiment.config import Config
from ...experiment.prepare import prepare
from ...images import Split, pixels
from ...spec import unseen_domains


class Run(NamedTuple):
    """A finished run whose model and data are not loaded."""

    folder: Path
    config: Config

    def __str__(self) -> str:
        return f"{self.config.method}, {self.config.target} unseen, seed {self.config.seed}"


class OpenRun(NamedTuple):
    """A run with its model and its data loaded."""

    run: Run
    nets: Networks
    classes: tuple[str, ...]
    train: dict[str, Split]  # training data of the sources' sites, by domain
    val: dict[str, Split]  # validation data of these sites, by domain
    unseen: dict[str, Split]

    @property
    def net(self) -> Classifier:
        """Return the model of the round that source validation chose, unless other parameters were written into it."""
        return cast(Classifier, self.nets["model"])  # one of the user's own may give only logits: see `ensure`

    def ensure(self, part: str, kind: str) -> None:
        """Raise `ConfigError` if the model lacks what a kind of figure needs: features or maps."""
        ensure_provides(self.net, {part}, kind, self.run.config.network)

    @property
    def device(self) -> torch.device:
        """Return the device of the networks."""
        return next(self.net.parameters()).device

    @property
    def domains(self) -> dict[str, Split]:
        """Return the data of all domains, unseen domains last."""
        return self.train | self.unseen

    def name(self, kind: str) -> str:
        """Return the file stem of a figure of this run."""
        return "-".join((kind, *run_folder.path(Path(), self.run.config).parts))

    def label(self, domain: str) -> str:
        """Return the name of a domain, marked if it is unseen."""
        return f"{domain} (unseen)" if domain in self.unseen else domain

    def load_last_round(self) -> None:
        """Write the server's model and generator after the last round into the networks."""
        state = checkpoint.load(self.run.folder / run_folder.CHECKPOINT)[0]["state"]["server"]
        for name in ("model", "generator"):
            write(self.nets[name], state[name])

    def file(self, domain: str, row: int) -> str:
        """Return the name of an image: its file's name, or its number if the data are arrays."""
        images = self.domains[domain][0]
        number = row if isinstance(images, Tensor) else int(images.rows[row])
        names = dataset(self.run.config.data).note(domain).names
        return names[number] if names else str(number)


def finished_runs(
    folders: Iterable[Path], target: str | None = None, seed: int | None = None, methods: Sequence[str] = ()
) -> list[Run]:
    """Return the finished runs of one target (by default the first), sorted by seed, then in the order of methods."""
    runs: dict[tuple[str, str, int], Run] = {}
    for folder in folders:
        finished = [path.parent for path in sorted(folder.rglob("config.json")) if (path.parent / "done").exists()]
        if not finished:
            raise StorageError(f"{folder} has no finished run; give a folder that 'fedbeyond run' or 'bench' wrote")
        for each in finished:
            config = run_folder.read_config(each)
            runs.setdefault((config.method, str(config.target), config.seed), Run(each, config))
    selected = list(runs.values())
    selected = _only(selected, "target", target or min(str(run.config.target) for run in selected))
    if seed is not None:
        selected = _only(selected, "seed", str(seed))
    if methods:
        selected = [run for wanted in methods for run in _with_method(selected, wanted)]
    return sorted(selected, key=lambda run: run.config.seed)


def _only(runs: list[Run], key: str, wanted: str) -> list[Run]:
    there = {str(getattr(run.config, key)) for run in runs}
    if wanted not in there:
        raise ConfigError(f"no finished run has {key} {wanted}; {nearest(wanted, there)}")
    return [run for run in runs if str(getattr(run.config, key)) == wanted]


def _with_method(runs: list[Run], wanted: str) -> list[Run]:
    """Return the runs of a method, spelled in full or without its options."""
    spelled = spec.format_spec(spec.parse(wanted))
    exact = [run for run in runs if run.config.method == spelled]
    plain = [run for run in runs if without_options(run.config.method) == spelled]
    there = {name for run in runs for name in (run.config.method, without_options(run.config.method))}
    if not (exact or plain):
        raise ConfigError(f"no finished run is of {wanted}; {nearest(wanted, there)}")
    return exact or plain


def without_options(method: str) -> str:
    """Return a method's spelling without its options."""
    return "+".join(part.name for part in spec.parse(method))


def ensure_same_setting(runs: Sequence[Run]) -> None:
    """Raise ConfigError if runs differ in more than method and seed."""
    settings = {run.config.setting(): run for run in runs}
    if len(settings) > 1:
        first, second = list(settings.values())[:2]
        raise ConfigError(
            f"{first.folder} and {second.folder} have different settings (data, network, optimizer or training); "
            "give the folder of one, or choose runs with --method and --seed"
        )


def has_global_model(run: Run) -> bool:
    """Return whether a run's method has a global model, and not only a model at each site."""
    registry.load_plugins(run.config.plugins)
    return registry.build(run.config.method).eval_models is global_model


def describe_runs(runs: Sequence[Run]) -> str:
    """Describe runs of one target in a short text."""
    seeds = sorted({run.config.seed for run in runs})
    methods = ", ".join(dict.fromkeys(run.config.method for run in runs))
    return f"{methods}; {runs[0].config.target} unseen, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def labels(runs: Sequence[Run]) -> list[str]:
    """Return short unique names of runs: methods, with options and seed if needed."""
    spelled = [run.config.method for run in runs]
    plain = [without_options(method) for method in spelled]
    for names in (plain, spelled):
        if len(set(names)) == len(runs):
            return names
    return [f"{method}, seed {run.config.seed}" for method, run in zip(spelled, runs, strict=True)]


def open_run(run: Run, device: str = "cpu") -> OpenRun:
    """Load a run: its networks on a device, with the chosen round's model, and its images by domain."""
    if not has_global_model(run):
        raise ConfigError(
            f"{run.config.method} has no global model, only one at each site; choose others with --method"
        )
    run_folder.ensure_own_code(run.folder, run.config)
    setup = prepare(run.config, device, cached=False)
    model, notes = checkpoint.load(run.folder / run_folder.BEST)
    run_folder.ensure_same_frozen(notes, setup.assembly.frozen, run.folder)
    write(setup.nets["model"], model).eval()
    domains = dataset(run.config.data)
    clients = partition(run.config, domains).clients.values()

    def gather(part: str, domain: str) -> Split | None:
        rows = [indices for client in clients for name, indices in getattr(client, part).items() if name == domain]
        return select_rows(domains, {domain: np.concatenate(rows)}) if sum(map(len, rows)) else None

    train: dict[str, Split] = {}
    val: dict[str, Split] = {}
    for domain in domains.images:
        training, validation = gather("train", domain), gather("val", domain)
        if training is not None:
            train[domain] = preprocess_split(domains, training, training)
            if validation is not None:
                val[domain] = preprocess_split(domains, validation, training)
    unseen = {domain: setup.unseen[domain] for domain in unseen_domains(run.config.target)}
    return OpenRun(run, setup.nets, domains.classes, train, val, unseen)


def balanced_rows(labels: Tensor, count: int) -> Tensor:
    """Return the rows of `count` images, drawn reproducibly and as evenly over the classes as they allow."""
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    turns = torch.zeros_like(drawn)
    for label in labels.unique():
        of_class = labels[drawn] == label
        turns[of_class] = torch.arange(int(of_class.sum()))
    return drawn[turns.argsort(stable=True)[:count]].sort().values


def sample(splits: Iterable[Split], count: int) -> tuple[Tensor, Tensor]:
    """Return `count` images and labels in total, equally many of each split if it has that many."""
    every = list(splits)
    picked = [(split, balanced_rows(split[1], -(-count // len(every)))) for split in every]
    return torch.cat([x[rows] for (x, _), rows in picked]), torch.cat([y[rows] for (_, y), rows in picked])


@torch.no_grad()
def features(opened: OpenRun, images: Tensor) -> Tensor:
    """Return the features of images that a model's head gets."""
    net, batches = opened.net.eval(), images.split(eval_batch_size(opened.device))
    return torch.cat([net.features(pixels(x.to(opened.device))).cpu() for x in batches])
