"""Networks of the user's own: modules that give only logits, and bodies with a head that give more."""

import json
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import fedbeyond
from fedbeyond import tree
from fedbeyond.classifier import Classifier, Task, read
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import build, checkpoint, registry, run_folder, runner
from fedbeyond.experiment.config import parse
from fedbeyond.export.export import CARD, Exported, export
from fedbeyond.networks import classifier
from fedbeyond.networks.own import factory_of
from fedbeyond.report.figures.draw import draw
from fedbeyond.testing import toy
from fedbeyond.testing.compare import ensure_equal
from fedbeyond.testing.laws import simulate
from support.method_settings import SMALL
from support.paths import ROOT

TASK = Task(("red", "green", "blue"), (3, 6, 6), lambda task: nn.Identity())
ROWS = TASK._replace(shape=(5,))
NAMES = [SMALL.get(name, name) for name in registry.REGISTRY["methods"]]
NAMES += [f"fedavg+{name}" for name in registry.REGISTRY["wrappers"]]
LOGITS = [name for name in NAMES if not registry.build(name).needs]
FURTHER = [name for name in NAMES if name not in LOGITS]


class Mine(nn.Module):
    """Names that a `Classifier` has too, a parameter of its own, shared parameters, an index, views, two norms."""

    def __init__(self, classes=3):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.net = nn.Conv2d(4, 4, 1)
        self.again = self.net
        self.maps = nn.GroupNorm(2, 4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("order", torch.tensor([1, 0, 3, 2]))
        self.head = nn.Sequential(nn.Linear(4 * 36, 8), nn.ReLU(), nn.Linear(8, classes))

    def forward(self, x):
        x = self.maps(self.again(self.net(self.features(x) * self.scale)))[:, self.order]
        return self.head(x.view(x.size(0), -1))


def built(network, task=TASK):
    return factory_of(network)(task)


def my_net(task):
    return Mine(len(task.classes))


def body(channels=5):
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU())


@pytest.mark.parametrize(
    "network",
    [Mine, Mine(), my_net, lambda: Mine(), lambda task: my_net(task), partial(Mine, 3), partial(Mine, classes=3)],
    ids=["class", "module", "function", "no arguments", "lambda", "partial", "partial by name"],
)
def test_a_network_is_a_module_a_class_or_a_function(network):
    net = built(network)
    assert isinstance(net, Mine) and net.training and net(torch.rand(2, 3, 6, 6)).shape == (2, 3)
    assert net is not network and built(network) is not net


def test_a_module_is_copied_with_its_numbers_whatever_the_seed():
    module = Mine()
    task = TASK._replace(network=factory_of(module))
    nets = [build.networks(registry.build("fedavg"), task, seed, "cpu")["model"] for seed in (0, 1)]
    for net in nets:
        ensure_equal(read(net), read(module), "a copy has other numbers")
    with torch.no_grad():
        nets[0].scale.zero_()
    assert bool(module.scale.all()) and bool(nets[1].scale.all())
    fresh = [build.networks(registry.build("fedavg"), TASK._replace(network=my_net), seed, "cpu") for seed in (0, 1)]
    assert not torch.equal(fresh[0]["model"].net.weight, fresh[1]["model"].net.weight)


def test_a_module_may_have_attributes_of_any_name():
    module = Mine()
    module.spec, module.tested, module.provides = "convnet", True, {"maps"}
    assert built(module) is not module
    with pytest.raises(ConfigError, match="fedgca needs feature maps, and Mine gives only logits"):
        build.networks(registry.build("fedgca"), TASK._replace(network=factory_of(module)), 0, "cpu")


def test_networks_of_fedbeyond_are_taken_as_they_are():
    for network in (fedbeyond.networks.convnet(), registry.make_one("networks", "mlp")):
        assert factory_of(network) is network
    once = factory_of(my_net)
    assert factory_of(once) is once


@pytest.mark.parametrize("given", [None, 3, "convnet", [Mine()]])
def test_what_is_no_network_is_refused(given):
    with pytest.raises(ConfigError, match=r"a network is a torch\.nn\.Module or a function that returns one, and "):
        factory_of(given)


class Asks(nn.Module):
    def __init__(self, width):
        super().__init__()


@pytest.mark.parametrize("given", [Asks, lambda task, width: None, lambda *, width: None])
def test_a_function_whose_arguments_nobody_gives_is_refused(given):
    with pytest.raises(ConfigError, match=r"needs .*width, which nobody gives; give a function of the task, .* lambda"):
        factory_of(given)


class Returns(nn.Module):
    """Returns what a function makes of logits."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(108, 3), change

    def forward(self, x):
        return self.change(self.linear(x.flatten(1)))


def with_product(net):
    net.product = net.scale * 2
    return net


UNSUITABLE = [
    (Mine(7), r"Mine returns a tensor \(2, 7\) of float32 for 2 images of 3 x 6 x 6; expected is a tensor \(2, 3\)"),
    (Returns(lambda y: (y, y)), r"Returns returns a tuple for 2 images"),
    (Returns(lambda y: {"logits": y}), r"Returns returns a dict"),
    (Returns(lambda y: y.argmax(1)), r"a tensor \(2,\) of int64"),
    (Returns(lambda y: y.long()), r"a tensor \(2, 3\) of int64"),
    (Returns(lambda y: y.squeeze(0)), r"a tensor \(3,\) of float32 for 1 images"),
    (nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), r"Sequential cannot take images of 3 x 6 x 6 \(mat1 and mat2"),
    (
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        r"Sequential has no parameters, so that there is nothing to train",
    ),
    (Mine().requires_grad_(False), r"Mine has a frozen parameter, scale, and methods train all parameters"),
    (lambda task: len(task.classes), r"the network returned a int, not a torch.nn.Module"),
    (lambda: with_product(Mine()), r"the network cannot be copied \(Only Tensors created explicitly"),
    (lambda: Mine().to("meta"), r"the network is on the device meta and has no numbers"),
]


@pytest.mark.parametrize(("network", "complaint"), UNSUITABLE)
def test_an_unsuitable_network_is_reported_when_it_is_built(network, complaint):
    with pytest.raises(ConfigError, match=complaint):
        built(network)


def test_a_network_of_rows_is_tested_on_rows():
    assert built(nn.Linear(5, 3), ROWS)(torch.rand(1, 5)).shape == (1, 3)
    with pytest.raises(ConfigError, match=r"Linear cannot take rows of 5 features \(mat1"):
        built(nn.Linear(4, 3), ROWS)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_lazy_layers_get_their_shapes_unless_they_are_not_used():
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3))
    net = built(lambda: lazy)
    assert {name: tuple(param.shape) for name, param in net.named_parameters()}["3.weight"] == (3, 64)
    assert same(built(lazy), lazy)  # a module keeps the numbers of its first use
    torch.manual_seed(0)
    assert not same(*(built(lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3))) for _ in range(2)))
    unused = Mine()
    unused.extra = nn.LazyLinear(2)
    with pytest.raises(ConfigError, match="Mine has lazy layers that its forward does not use"):
        built(unused)


def test_testing_a_network_draws_nothing_and_changes_no_statistics():
    class Noisy(Mine):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    before = read(module := Noisy())
    torch.manual_seed(3)
    net, drawn = built(module), torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    ensure_equal(read(net), before, "the test changed the network")


def test_a_plan_has_shapes_without_numbers():
    task = TASK._replace(network=factory_of(Mine()))
    net = build.networks(registry.build("fedavg"), task, 0, "meta")["model"]
    assert {param.device.type for param in net.parameters()} == {"meta"}


# every method


def play(name, network):
    """Two rounds on the toy sites."""
    return simulate(registry.build(name), 2, task=toy.TASK._replace(network=factory_of(network)))[0]


@pytest.mark.parametrize("name", LOGITS)
def test_every_method_that_needs_only_logits_trains_any_module(name):
    state, initial = play(name, my_net), Mine()
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(state))
    ensure_equal(play(name, my_net), state, "two runs differ")
    model = state["server"]["model"]
    assert model["params"].keys() == dict(initial.named_parameters()).keys()
    assert model["buffers"].keys() >= dict(initial.named_buffers()).keys()
    assert torch.equal(model["buffers"]["order"], initial.order)


@pytest.mark.parametrize("name", FURTHER)
def test_every_other_method_says_what_it_needs_before_training(name, monkeypatch):
    def train(*given):
        raise AssertionError("a client trains")

    monkeypatch.setattr("fedbeyond.client.Local.__init__", train)
    needs = registry.build(name).needs
    with pytest.raises(
        ConfigError, match=r"needs .*, and Mine gives only logits; build your network with fedbeyond"
    ) as e:
        play(name, Mine())
    assert str(e.value).startswith(name.split("+")[0]) and ("stages=" in str(e.value)) == ("stages" in needs)


WHOLE = [classifier(body, stages=("0", "2")), classifier(body(), nn.Linear(5, 3, bias=False), stages=["0", "2"])]


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.parametrize("network", WHOLE, ids=["new head", "given head"])
def test_a_body_with_a_head_serves_every_method(name, network):
    state = play(name, network)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(state))


# a body and a head


def test_a_body_of_maps_gives_all_that_methods_use():
    net = built(classifier(body, stages=("0", "2")))
    x = torch.rand(2, 3, 6, 6)
    assert net.provides == {"features", "maps", "pooled", "stages"} and net.attentive
    assert net.stages == ("body.0", "body.2") and net.head.weight.shape == (3, 5)
    assert torch.equal(net.features(x), net.maps(x).mean((2, 3))) and net.maps(x).shape == (2, 5, 4, 4)
    assert torch.equal(net(x), net.head(net.features(x))) and torch.equal(net(x), net.maps_and_logits(x)[1])
    assert classifier is fedbeyond.networks.classifier and "classifier" in dir(fedbeyond.networks)


def test_a_body_of_features_gives_no_maps():
    net = built(classifier(lambda: nn.Sequential(body(), nn.Flatten(), nn.LazyLinear(7)), stages=["0.0"]))
    x = torch.rand(2, 3, 6, 6)
    assert net.provides == {"features", "stages"} and not net.attentive and net.head.in_features == 7
    assert torch.equal(net.features(x), net.body(x)) and torch.equal(net(x), net.head(net.body(x)))
    assert built(classifier(nn.Linear(5, 4)), ROWS).provides == {"features"}


def test_body_and_head_are_copied_and_may_depend_on_the_task():
    module, head = body(), nn.Linear(5, 3)
    nets = [built(classifier(module, head)) for _ in range(2)]
    assert torch.equal(nets[0].head.weight, head.weight) and nets[0].head is not nets[1].head is not head
    assert nets[0].body is not module and torch.equal(nets[0].body[0].weight, module[0].weight)
    deep = built(classifier(lambda task: body(2 * len(task.classes))))
    assert isinstance(deep, Classifier) and deep.head.in_features == 6


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (lambda: classifier(body, nn.Linear(4, 3)), "the head takes 4 features, and the body body gives 5"),
        (lambda: classifier(body, nn.Linear(5, 4)), r"returns a tensor \(2, 4\) of float32"),
        (lambda: classifier(body, classes=9), r"returns a tensor \(2, 9\) of float32"),
        (lambda: classifier(body, nn.Identity()), "a torch.nn.Linear or None, and Identity was given"),
        (lambda: classifier(body, stages=["layer1"]), "body has no submodule 'layer1'; .* such as 0, 1, 2"),
        (
            lambda: classifier(nn.Sequential(body(), nn.Flatten()), stages=["1"]),
            r"the stage '1' of Sequential returns a tensor \(2, 80\) of float32 and no maps",
        ),
        (
            lambda: classifier(nn.Sequential(body(), nn.Flatten(2))),
            r"returns a tensor \(2, 5, 16\).*; it must return maps",
        ),
        (lambda: classifier(3), "a network is a torch.nn.Module or a function"),
        (lambda: classifier(nn.Linear(2, 2)), r"Linear cannot take images of 3 x 6 x 6"),
    ],
)
def test_parts_that_do_not_fit_are_reported(network, complaint):
    with pytest.raises((ConfigError, AttributeError), match=complaint):
        built(network())


def test_a_body_that_needs_contiguous_tensors_is_reported():
    """Networks with features are trained on tensors with channels last."""

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            x = self.conv(x)
            return x.view(len(x), -1)

    with pytest.raises(ConfigError, match=r"cannot take images of 3 x 6 x 6 \(view size .*reshape"):
        built(classifier(Views))


# policies, figures, exports


@pytest.fixture
def registered():
    """The network `mine` by name."""
    registry.register("networks", "mine", mine)
    yield "mine"
    del registry.REGISTRY["networks"]["mine"]


def mine():
    return lambda task: Mine32(len(task.classes))


class Mine32(Mine):
    """The same for larger images."""

    def __init__(self, classes):
        super().__init__(classes)
        self.head = nn.Sequential(nn.Linear(4 * 16, 8), nn.ReLU(), nn.Linear(8, classes))
        self.maps = nn.Sequential(nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(4))


class Wide(nn.Sequential):
    def __init__(self, width: int = 4):
        super().__init__(nn.Flatten(), nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, 3))


def of_task(task: Task, width: int = 4):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, len(task.classes)))


INSTANCE = Wide(5)
FORMS = [Wide, of_task, lambda width=4: Wide(width), lambda width=4: partial(of_task, width=width)]
FORMS += [lambda width=4: lambda: Wide(width)]


@pytest.mark.parametrize("form", FORMS, ids=["class", "task", "module", "factory of tasks", "factory"])
def test_a_registered_network_has_options_and_starts_from_the_seed(form, monkeypatch):
    monkeypatch.setitem(registry.REGISTRY["networks"], "wide", form)
    network = build.network_factory("wide(width=6)")
    method, nets = registry.build("fccl(images=0)"), []
    for seed in (0, 0, 1):
        torch.manual_seed(len(nets))
        nets.append(build.networks(method, TASK._replace(network=network), seed, "cpu"))
    first, again, other = (read(each["model"])["params"] for each in nets)
    assert first["1.weight"].shape == (6, 108) and torch.equal(first["1.weight"], again["1.weight"])
    assert not torch.equal(first["1.weight"], other["1.weight"])
    assert not torch.equal(first["1.weight"], read(nets[0]["teacher"])["params"]["1.weight"])
    with pytest.raises(ConfigError, match=r"'wide' has no option 'depth'"):
        build.network_factory("wide(depth=6)")(TASK)
    with pytest.raises(ConfigError, match=r"moon needs the features before .*, and wide\(width=6\) gives only logits"):
        build.networks(registry.build("moon"), TASK._replace(network=network), 0, "cpu")


@pytest.mark.parametrize("form", [lambda: INSTANCE, lambda: lambda: INSTANCE], ids=["module", "function"])
def test_a_module_that_is_registered_is_not_trained_itself(form, monkeypatch):
    monkeypatch.setitem(registry.REGISTRY["networks"], "wide", form)
    nets = build.networks(registry.build("g2g"), TASK._replace(network=build.network_factory("wide")), 0, "cpu")
    assert INSTANCE not in nets.values() and nets["model"] is not nets["private"]


def test_the_networks_in_the_docs_can_be_used(tmp_path, monkeypatch):
    blocks = [part.split("```")[0] for part in (ROOT / "docs" / "own-network.md").read_text().split("```python\n")[1:]]
    module, plugin, split, _ = blocks
    names = {}
    exec(module, names)
    assert built(names["MyNet"], TASK._replace(classes=tuple("abcdefg"))).last.out_features == 7
    monkeypatch.setitem(registry.REGISTRY, "networks", {**registry.REGISTRY["networks"]})
    (tmp_path / "my_nets.py").write_text(plugin)
    registry.load_plugins([str(tmp_path / "my_nets.py")])
    assert build.network_factory("mine(width=32)")(TASK)[1].out_features == 32
    if find_spec("torchvision"):
        exec(split, names)
        net = built(names["network"], TASK._replace(shape=(3, 64, 64)))
        assert net.provides == {"features", "maps", "pooled", "stages"} and net.head.in_features == 1280


def run(folder, network, method="fedavg", **train):
    given = {"method": method, "target": "sketch", "data": "styles(share=0.05)", "network": network}
    config = parse(given | {"train": {"rounds": 2, **train}})
    list(runner.run(runner.prepare(config), run_folder.path(folder, config)))
    return run_folder.path(folder, config)


@pytest.mark.parametrize("policy", ["average", "reestimate", "local", "frozen"])
@pytest.mark.parametrize("method", ["fedavg", "harmofl"])
def test_policies_of_batchnorm_apply_to_any_module(registered, tmp_path, policy, method):
    folder = run(tmp_path, registered, method, batchnorm=policy)
    model = checkpoint.load(folder / "best.safetensors")[0]
    counted = int(model["buffers"]["features.1.num_batches_tracked"])
    moved = not torch.equal(model["buffers"]["features.1.running_mean"], torch.zeros(4))
    assert moved == (policy != "frozen") and (counted > 0) == (policy != "frozen")
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(model))


def test_figures_of_a_network_that_gives_only_logits_say_what_they_need(registered, tmp_path):
    run(tmp_path / "runs", registered)
    for kind, needs in (
        ("cam", "feature maps"),
        ("tsne", "the features before a linear head"),
        ("gap", "the maps of a network's early"),
    ):
        with pytest.raises(ConfigError, match=f"{kind} needs {needs}.* gives only logits;"):
            list(draw(kind, [tmp_path / "runs"], tmp_path / "figures"))


def test_an_export_names_the_function_and_says_what_to_register(registered, tmp_path):
    out = export(run(tmp_path, registered), tmp_path / "model", onnx=True)  # compared with torch before it is written
    exported = Exported(out)
    assert exported.card["network_factory"] == f"{mine.__module__}:mine" and (out / "model.onnx").exists()
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    del registry.REGISTRY["networks"]["mine"]
    try:
        with pytest.raises(
            ConfigError, match=rf'.*\'mine\' of {mine.__module__}:mine, .*register\("networks", "mine", '
        ):
            Exported(out)
        for network in (mine(), lambda: Mine32(7)):
            assert torch.equal(Exported(out, network).probabilities(x), exported.probabilities(x))
        with pytest.raises(ConfigError, match="does not have the parameters of this model"):
            Exported(out, lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(7)))
    finally:
        registry.register("networks", "mine", mine)
    assert "network_factory" not in json.loads(
        (export(run(tmp_path / "other", "convnet"), tmp_path / "usual") / CARD).read_text()
    )
