"""The limit: FedAvg as one would write it by hand, a loop over the clients with one network.

With two cores it is the same loop with two threads in each operation.
"""

import task
import torch


def main() -> None:
    cell, folder = task.given()
    torch.set_num_threads(cell.cores)
    clock, net = task.Clock(folder), task.network(cell)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    clock.note()
    for number in range(cell.total):
        clients, mean = task.participants(cell, number), {}
        for client in clients:
            net.load_state_dict(weights)
            task.train(net, cell, client, number)
            for name, value in net.state_dict().items():
                if name in mean:
                    mean[name].add_(value, alpha=1 / len(clients))
                else:
                    mean[name] = value / len(clients)
        weights = mean
        clock.note()
    task.save(folder, weights)


if __name__ == "__main__":
    main()
