"""NVFlare's simulator: a job of its FedAvg controller and a script with its Client API at each site.

A site keeps its process from round to round only if there is a thread for each site (NVFlare's default); with fewer,
the simulator starts a process for every task. So each site has one, up to ten, all on the cell's cores. Saving the
model after each round is off, tensors travel as tensors, and every interval that can be set is short: how often the
controller looks for results (usually 0.5 s), when a site comes back for its next task (2 s) or asks again (0.5 s).
"""

from pathlib import Path

import task
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_opt.pt.fedavg import PTFedAvg
from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

HERE, OFTEN = Path(__file__).parent, 0.05


class Timed(PTFedAvg):
    """FedAvg from the suite's first weights, asking the clients of the suite's rounds; it keeps nothing on disk."""

    def __init__(self, path: str, num_clients: int, num_rounds: int) -> None:
        super().__init__(
            num_clients=num_clients, num_rounds=num_rounds, persistor_id="", save_filename="", task_check_period=OFTEN
        )
        self.path = path

    def load_model(self) -> FLModel:
        return FLModel(params=dict(task.network(task.read(Path(self.path))).state_dict()))

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        if self.current_round == 0:
            task.Clock(Path(self.path).parent).note()
        clients = task.participants(task.read(Path(self.path)), self.current_round)
        return [f"site-{client + 1}" for client in clients]

    def save_model(self, model: FLModel) -> None:
        folder = Path(self.path).parent
        task.Clock(folder).note()
        if self.current_round + 1 == self.num_rounds:
            task.save(folder, model.params)


def main() -> None:
    cell, folder = task.given()
    path = str(folder / "cell.json")
    job = FedJob(name="speed", min_clients=cell.clients)
    job.to_server(Timed(path, cell.asked or cell.clients, cell.total))
    job.to_server({"server": {"task_request_interval": OFTEN}})
    site = ScriptRunner(
        script=str(HERE / "nvflare_site.py"), script_args=path, server_expected_format=ExchangeFormat.PYTORCH
    )
    job.to_clients(site)
    job.to_clients({"default_task_fetch_interval": OFTEN})
    threads = min(cell.clients, 10)  # a hundred processes with torch in each do not fit into a usual machine
    job.simulator_run(str(folder / "workspace"), n_clients=cell.clients, threads=threads, log_config="concise")


if __name__ == "__main__":
    main()
