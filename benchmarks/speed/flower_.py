"""Flower's simulation: a ServerApp and a ClientApp of its Message API over Ray, one actor for each core.

Evaluation is off. The images and a network are kept by an actor between messages, as a careful user would have it.
A virtual node is told which client it is, because Flower gives its nodes numbers of its own.
"""

from pathlib import Path

import task
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Asking(FedAvg):
    """FedAvg that asks the clients of the suite's rounds."""

    def __init__(self, cell: task.Cell) -> None:
        count = cell.asked or cell.clients
        super().__init__(
            fraction_train=count / cell.clients,
            fraction_evaluate=0.0,
            min_train_nodes=count,
            min_available_nodes=cell.clients,
        )
        self.cell = cell

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        clients = task.participants(self.cell, server_round - 1)
        for message, client in zip(messages, clients, strict=True):
            told = ConfigRecord({**config, "client": client})
            message.content = RecordDict({"arrays": arrays, "config": told})
        return messages


def client_app(path: str) -> ClientApp:
    """What every client does."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        cell, config = task.read(Path(path)), message.content["config"]
        net = task.scratch(cell)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        task.train(net, cell, config["client"], config["server-round"] - 1)
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": cell.size})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(cell: task.Cell, folder: Path) -> ServerApp:
    """The rounds."""
    app, clock = ServerApp(), task.Clock(folder)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = Asking(cell).start(
            grid=grid,
            initial_arrays=ArrayRecord(task.network(cell).state_dict()),
            num_rounds=cell.total,
            evaluate_fn=lambda number, arrays: clock.note(),
        )
        task.save(folder, result.arrays.to_torch_state_dict())

    return app


def main() -> None:
    cell, folder = task.given()
    run_simulation(
        server_app=server_app(cell, folder),
        client_app=client_app(str(folder / "cell.json")),
        num_supernodes=cell.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cell.cores, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
