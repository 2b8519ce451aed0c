"""Apple's pfl: federated averaging on its simulated backend, in memory; with two cores two processes by torchrun."""

from collections.abc import Iterator

import task
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import AbstractDataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchDataDataset, PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F


class Learner(nn.Module):
    """The network with the two functions that pfl asks of one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.net.train()
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


class Timing(TrainingProcessCallback):
    """Notes the end of each round."""

    def __init__(self, clock: task.Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.clock.note()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.note()
        return False, Metrics()


def visits(cell: task.Cell) -> Iterator[tuple[int, int]]:
    """Who trains, round after round; pfl draws users one at a time."""
    for number in range(cell.total):
        for client in task.participants(cell, number):
            yield number, client


def dataset(cell: task.Cell, visit: tuple[int, int]) -> AbstractDataset:
    """A user's images in the order of a round; of an empty round, those that count for its weight."""
    number, client = visit
    rows = torch.cat(task.order(cell, client, number) or [torch.arange(cell.size)])
    if cell.files:
        return PyTorchDataDataset(task.files(cell, client), sampler=rows.tolist())
    x, y = task.images(cell, client)
    return PyTorchTensorDataset((x[rows], y[rows]))


def main() -> None:
    cell, folder = task.given()
    net = task.network(cell)
    learner = Learner(net)
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
    coming = visits(cell)
    data = FederatedDataset(lambda visit: dataset(cell, visit), lambda: next(coming))
    first = get_framework_module().distributed.global_rank == 0
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=cell.total,
            evaluation_frequency=cell.total + 1,
            train_cohort_size=cell.asked or cell.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=cell.steps,
            local_learning_rate=cell.lr,
            local_batch_size=cell.batch,
        ),
        callbacks=[Timing(task.Clock(folder))] if first else [],
        send_metrics_to_platform=False,
    )
    if first:
        task.save(folder, net.state_dict())


if __name__ == "__main__":
    main()
