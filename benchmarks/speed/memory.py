"""What a round of many clients needs above its data, in models: python benchmarks/speed/memory.py [CLIENTS [ROUNDS]]

FedAvg with ResNet-18 and plain SGD, set up as in a run. Every client takes one step on two small images, so that memory
is for models and little else. Counted is the peak of the process's memory (VmHWM), less what it used before there was
any model, after torch had computed such a step: models, gradients, activations, buffers of oneDNN, and fragmentation.
By default fedbeyond keeps freed memory, which is faster; MALLOC_MMAP_THRESHOLD_=4194304 in the environment saves some.
With two rounds or more, the processor time of a training step shows what such a setting costs.
"""

import ctypes
import gc
import json
import os
import resource
import sys
import time
from statistics import median

import torch
from torch import nn

from fedbeyond import tree
from fedbeyond.classifier import Task, read
from fedbeyond.engine.allocator import keep_freed_memory
from fedbeyond.engine.gate import Gate
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.experiment import registry
from fedbeyond.experiment.build import networks
from fedbeyond.networks._resnet import resnet18
from fedbeyond.server import Round
from fedbeyond.site import Site


def now() -> int:
    """Bytes that the process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def most() -> int:
    """The most that it ever had."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024


def warm_up(task: Task) -> None:
    """Let torch load and compile what it needs to train such a network, and give all other memory back."""
    for _ in range(2):
        net, images = (
            one.to(memory_format=torch.channels_last) for one in (task.network(task), torch.zeros(2, 3, 16, 16))
        )
        nn.functional.cross_entropy(net(images), torch.tensor([0, 1])).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        del net
        gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def main(clients: int, rounds: int = 2) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    data = {"train": (torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8), torch.tensor([0, 1]))}
    task = Task(("cat", "dog"), (3, 16, 16), resnet18())
    warm_up(task)
    before = now()
    method = registry.build("fedavg")
    nets = networks(method, task, 0, "cpu")
    sites = [Site(f"site-{number:03}", data, nets, batch_size=2) for number in range(clients)]
    federation = Simulator(method.client, sites)
    begin = {name: tree.to("cpu", read(nets[name])) for name in method.shared}
    size, state = tree.size(begin), start(method, federation.clients, begin)
    gate = Gate(method.sends, tree.to("meta", begin), {site.name: site.size for site in sites})
    del begin
    for number in range(rounds):
        state, _ = play(method, state, Round(number, rounds, federation.clients, federation.clients), federation, gate)
    measured: dict[str, object] = {
        "clients": clients,
        "model_mb": round(size / 1e6, 1),
        "models_above_the_data": round((most() - before) / size, 2),
    }
    if rounds > 1:
        measured["step_seconds"] = step_seconds()
    set_by_user = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("MALLOC_")]
    print(json.dumps(measured | {"environment": " ".join(sorted(set_by_user))}))


def step_seconds(steps: int = 12) -> float:
    """Return the median processor time of a training step on 32 images of 64 px."""
    task, layout = Task(("cat", "dog"), (3, 64, 64), resnet18()), torch.channels_last
    net, images = task.network(task).to(memory_format=layout), torch.rand(32, 3, 64, 64).to(memory_format=layout)
    optimizer, labels, seconds = torch.optim.SGD(net.parameters(), lr=0.01), torch.arange(32) % 2, []
    for _ in range(steps):
        began = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        seconds.append(time.process_time() - began)
    return round(median(seconds[2:]), 3)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["100"]))
