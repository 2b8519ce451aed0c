"""Names of own objects: a result always belongs to what the user passed, whatever its name stands for later."""

import gc
import weakref
from dataclasses import replace

import pytest
from torch import nn

import fedbeyond as fb
from api.conftest import tiny
from fedbeyond.errors import ConfigError


def network(activation):
    def net(task):
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), activation(), nn.Linear(8, len(task.classes)))

    return net


def scores(run):
    return [line["scores"] for line in run.lines]


def test_two_networks_of_one_name_stay_apart(data, small, tmp_path):
    relu, tanh = ({**small, "network": network(kind)} for kind in (nn.ReLU, nn.Tanh))
    longer = fb.run("fedavg", data, **relu | {"rounds": 4})
    one, two = fb.run("fedavg", data, **relu), fb.run("fedavg", data, **tanh)
    assert isinstance(one.model.net[2], nn.ReLU) and isinstance(two.model.net[2], nn.Tanh)
    assert one.lines[0]["setting"] != two.lines[0]["setting"]
    one.resume(rounds=4)
    assert one.lines == longer.lines and two.lines != longer.lines[:3]
    one.save(tmp_path)
    with pytest.raises(ConfigError, match=r"holds another run: .*code\.networks\.net is"):
        fb.run("fedavg", replace(data, name="squares"), out=tmp_path, **tanh)


@pytest.mark.filterwarnings("ignore:this method was built")
def test_two_methods_of_one_name_stay_apart(data, small):
    one, two = (replace(method, min_clients=1) for method in (fb.fedavg(), fb.fedprox(mu=100.0)))
    first, second = (fb.run(method, data, name="ours", **small) for method in (one, two))
    again = fb.run(one, data, name="ours", **small)
    assert again.lines == first.lines and scores(second) != scores(first)
    assert first.resume(rounds=4).lines == fb.run(one, data, name="ours", **small | {"rounds": 4}).lines


def test_two_datasets_of_one_name_stay_apart(small, tmp_path):
    one, two = (replace(tiny(shift), name="squares") for shift in (0, 1))
    first, second = (fb.run("fedavg", data, **small) for data in (one, two))
    assert fb.run("fedavg", one, **small).lines == first.lines and scores(second) != scores(first)
    first.save(tmp_path)  # after the name stood for other data
    assert fb.run("fedavg", one, out=tmp_path, **small).lines == first.lines


def test_a_comparison_is_resumed_with_what_it_began_with(data, small, monkeypatch):
    grid = {key: value for key, value in small.items() if key != "target"} | {"targets": "west", "seeds": 2}
    whole = fb.compare(["fedavg"], data, **grid | {"network": network(nn.ReLU)})
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)

    def stop(line):
        if line["seed"] == 1:
            raise KeyboardInterrupt

    table = fb.compare(["fedavg"], data, **grid | {"network": network(nn.ReLU), "progress": stop})
    fb.run("fedavg", data, **small | {"network": network(nn.Tanh)})
    table._grid.computing = table._grid.computing._replace(progress=False)
    assert [run.lines for run in table.resume()] == [run.lines for run in whole]


def test_a_method_that_was_built_by_replaced_code_is_refused(data, small):
    def define(mu):
        @fb.register("methods")
        def mine(optimizer=fb.sgd(lr=0.05)):  # noqa: B008
            return fb.fedprox(mu=mu, optimizer=optimizer)

    define(0.1)
    method = fb.ga(fb.method("mine"))
    assert fb.run(method, data, **small).config.method == "mine+ga"
    define(0.2)
    with pytest.raises(
        ConfigError, match=r"method: mine\+ga was built by code that was replaced since; build it again"
    ):
        fb.run(method, data, **small)


def test_a_run_leaves_no_mark_on_the_objects_of_the_user(data, small):
    body = fb.networks.classifier(lambda: nn.Conv2d(3, 4, 3))
    fb.run("fedavg", data, **small | {"network": body})
    assert not hasattr(body, "spec") and not hasattr(data, "spec")
    with pytest.raises(ConfigError, match="network: an object without a name cannot be stored"):
        fb.run("fedavg", replace(data, name="squares"), **small | {"network": body, "out": "somewhere"})


def test_attributes_of_a_users_module_are_not_its_spec_or_name(data, small):
    net = network(nn.ReLU)(fb.Task(("a", "b"), (3, 8, 8), None, 2))
    net.spec, net.name = "convnet", "my net"
    assert fb.run("fedavg", data, **small | {"network": net}).config.network.startswith("network-")


def test_data_and_networks_are_freed_with_their_run(small):
    gone = []
    for shift in range(3):
        data, net = tiny(shift), network(nn.ReLU)(fb.Task(("a", "b"), (3, 8, 8), None, 2))
        run = fb.run("fedavg", data, **small | {"network": net})
        assert run.model is run.model
        gone += [weakref.ref(data), weakref.ref(net), weakref.ref(run)]
        del data, net, run
    gc.collect()
    assert [each() for each in gone] == [None] * 9


def test_own_methods_are_comparable_with_others(data, small):
    def mine(optimizer):
        return fb.fedprox(mu=0.1, optimizer=optimizer)

    table = fb.compare(
        [fb.fedavg(), mine], data, targets="west", seeds=1, **{k: small[k] for k in small if k != "target"}
    )
    assert "NOT COMPARABLE" not in repr(table) and len({run.lines[0]["setting"] for run in table}) == 1
