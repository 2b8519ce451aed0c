"""The names of `import fedbeyond as fb`: complete, quick to import, and none shared with a module."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedbeyond as fb
from fedbeyond import methods, wrappers
from fedbeyond._factory import exposed
from fedbeyond.errors import ConfigError

SOURCE = Path(fb.__file__)


def test_everything_in_all_can_be_imported_and_methods_and_wrappers_are_in_it():
    assert (
        {*methods.PLACES, *wrappers.PLACES, "run", "compare", "datasets", "networks"} <= set(fb.__all__) == set(dir(fb))
    )
    for name in fb.__all__:
        assert getattr(fb, name) is not None, name
    for module in (fb.datasets, fb.networks):
        assert all(callable(getattr(module, name)) for name in dir(module)) and len(dir(module)) > 10


def test_type_checkers_see_the_same_names():
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(fb.__all__) - {"NUMERICS", "WIRE"}


def test_no_function_shares_its_dotted_path_with_a_module():
    for package in (fb, fb.networks):
        modules = {name for _, name, _ in pkgutil.iter_modules(package.__path__)}
        functions = {name for name in dir(package) if not inspect.ismodule(getattr(package, name))}
        assert not modules & functions
    for name in methods.PLACES:
        assert importlib.import_module(methods.PLACES[name].partition(":")[0])


def test_importing_fedbeyond_is_quick_and_loads_neither_torch_nor_numpy():
    code = (
        "import sys, time; began = time.perf_counter(); import fedbeyond; "
        "print(time.perf_counter() - began, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seconds, *loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(seconds) < 0.2 and loaded == ["False", "False"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        fb.fedavgg  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'style'; did you mean 'styles'"):
        fb.datasets.style  # noqa: B018
    assert not hasattr(fb, "_nothing")


def test_functions_compose_as_specs_do():
    method = fb.ga(fb.fedsb(smoothing=0.1), step=0.05)
    assert method.spec == "fedsb(smoothing=0.1)+ga(step=0.05)" == fb.method(method.spec).spec
    assert fb.fedsb(preset="official").spec == "fedsb:official"
    assert fb.networks.convnet(8).spec == "convnet(width=8)" and fb.sgd(0.1).spec == "sgd(lr=0.1)"
    assert fb.networks.resnet18(weights=Path("a/b.safetensors")).spec == "resnet18(weights=a/b.safetensors)"
    assert not hasattr(fb.fedavg(optimizer=fb.sgd(0.1)), "spec")


WRONG = {
    "option": (lambda: fb.fedprox(my=1), "'fedprox' has no option 'my'; did you mean 'mu'"),
    "value": (lambda: fb.fedprox(mu=-1), "fedprox: mu=-1 is not valid"),
    "kind": (lambda: fb.fedprox(mu="much"), "fedprox: mu='much' is not valid"),
    "places": (lambda: fb.fedprox(1, 2), "too many positional arguments"),
    "preset": (lambda: fb.fedprox(preset="best"), "'fedprox' has no preset 'best'; it has default, paper, official"),
    "wrapped": (lambda: fb.ga("fedavg"), r"ga: got 'fedavg'; give a method, as in ga\(fedavg\(\)\)"),
    "nothing": (lambda: fb.ga(), "missing a required argument: 'method'"),
    "noise": (lambda: fb.ga(fb.dp(fb.fedavg())), "put dp last, as in fedavg\\+ga\\+dp"),
    "array": (lambda: fb.fedprox(mu=[0.1] * 100), r"fedprox: mu=\(a list\) is not valid"),
    "group": (lambda: fb.register("method", "a", print), "group 'method' is not known; did you mean 'methods'"),
    "name": (lambda: fb.register("methods", "a b", print), "'a b' cannot be a name"),
    "taken": (lambda: fb.register("methods", "fedavg", print), "methods already has a 'fedavg'"),
    "factory": (lambda: fb.register("methods", "a", 3), "method 'a' is a int, which cannot be called; give a function"),
    "domain": (lambda: fb.datasets.styles(share=0.05)["foto"], "no domain 'foto'; did you mean 'photo'"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_in_one_sentence(call, message):
    from fedbeyond.errors import FedbeyondError

    with pytest.raises(FedbeyondError, match=message) as caught:
        call()
    assert len(str(caught.value)) < 250


def test_an_exposed_function_keeps_its_name_and_docstring():
    assert fb.fedprox.__name__ == "fedprox" and fb.fedprox.__doc__ and "mu" in inspect.signature(fb.fedprox).parameters
    assert "optimizer" not in inspect.signature(fb.fedprox).parameters
    with pytest.raises(ConfigError):
        exposed(fb.fedprox.__wrapped__)(my=1)
