"""Federated domain generalization: methods that compose, obey the same laws and run on a real federation.

Everything in `__all__` is imported when it is first used, so that `import fedbeyond` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

NUMERICS = 6  # version of results: raised by every change after which the same configuration gives other numbers
WIRE = 3  # version of messages between server and sites: raised by every change that the other side must know

if TYPE_CHECKING:
    from . import datasets as datasets
    from . import losses as losses
    from . import networks as networks
    from . import testing as testing
    from . import tree as tree
    from ._method import Method as Method
    from .api.comparison import Comparison as Comparison
    from .api.results import Run as Run
    from .api.run import compare as compare
    from .api.run import load as load
    from .api.run import run as run
    from .classifier import Classifier as Classifier
    from .classifier import Task as Task
    from .client import Client as Client
    from .experiment.registry import build as method
    from .experiment.registry import register as register
    from .images import Dataset as Dataset
    from .methods.afl import afl as afl
    from .methods.arfl import arfl as arfl
    from .methods.ats import ats as ats
    from .methods.ccst import ccst as ccst
    from .methods.coral import coral as coral
    from .methods.csac import csac as csac
    from .methods.dann import dann as dann
    from .methods.ddaig import ddaig as ddaig
    from .methods.elcfs import elcfs as elcfs
    from .methods.erm import erm as erm
    from .methods.fccl import fccl as fccl
    from .methods.fedadg import fedadg as fedadg
    from .methods.fedavg import fedavg as fedavg
    from .methods.fedavgm import fedavgm as fedavgm
    from .methods.fedbn import fedbn as fedbn
    from .methods.fedcsa import fedcsa as fedcsa
    from .methods.feddag import feddag as feddag
    from .methods.feddyn import feddyn as feddyn
    from .methods.fedgca import fedgca as fedgca
    from .methods.fedgma import fedgma as fedgma
    from .methods.fediir import fediir as fediir
    from .methods.fednova import fednova as fednova
    from .methods.fedopt import fedadagrad as fedadagrad
    from .methods.fedopt import fedadam as fedadam
    from .methods.fedopt import fedyogi as fedyogi
    from .methods.fedprox import fedprox as fedprox
    from .methods.fedsam import fedsam as fedsam
    from .methods.fedsb import fedsb as fedsb
    from .methods.fedsr import fedsr as fedsr
    from .methods.g2g import g2g as g2g
    from .methods.groupdro import groupdro as groupdro
    from .methods.harmofl import harmofl as harmofl
    from .methods.irm import irm as irm
    from .methods.jigen import jigen as jigen
    from .methods.local import local as local
    from .methods.mixup import mixup as mixup
    from .methods.mmd import mmd as mmd
    from .methods.moon import moon as moon
    from .methods.ndag import ndag as ndag
    from .methods.perfedavg import perfedavg as perfedavg
    from .methods.randconv import randconv as randconv
    from .methods.rsc import rsc as rsc
    from .methods.scaffold import scaffold as scaffold
    from .methods.vrex import vrex as vrex
    from .optimizers import adam as adam
    from .optimizers import sam as sam
    from .optimizers import sgd as sgd
    from .wrappers.am import am as am
    from .wrappers.augmix import augmix as augmix
    from .wrappers.dp import dp as dp
    from .wrappers.ga import ga as ga
    from .wrappers.mixstyle import mixstyle as mixstyle
    from .wrappers.rc import rc as rc
    from .wrappers.sha import sha as sha

_MODULES = ("datasets", "losses", "networks", "testing", "tree")
_PLACES = {
    "Method": "._method",
    "Classifier": ".classifier",
    "Task": ".classifier",
    "Dataset": ".images",
    "Client": ".client",
    "Comparison": ".api.comparison",
    "Run": ".api.results",
    "compare": ".api.run",
    "load": ".api.run",
    "method": ".experiment.registry:build",
    "register": ".experiment.registry",
    "run": ".api.run",
}


__all__ = [
    "NUMERICS",
    "WIRE",
    "Classifier",
    "Client",
    "Comparison",
    "Dataset",
    "Method",
    "Run",
    "Task",
    "adam",
    "afl",
    "am",
    "arfl",
    "ats",
    "augmix",
    "ccst",
    "compare",
    "coral",
    "csac",
    "dann",
    "datasets",
    "ddaig",
    "dp",
    "elcfs",
    "erm",
    "fccl",
    "fedadagrad",
    "fedadam",
    "fedadg",
    "fedavg",
    "fedavgm",
    "fedbn",
    "fedcsa",
    "feddag",
    "feddyn",
    "fedgca",
    "fedgma",
    "fediir",
    "fednova",
    "fedprox",
    "fedsam",
    "fedsb",
    "fedsr",
    "fedyogi",
    "g2g",
    "ga",
    "groupdro",
    "harmofl",
    "irm",
    "jigen",
    "load",
    "local",
    "losses",
    "method",
    "mixstyle",
    "mixup",
    "mmd",
    "moon",
    "ndag",
    "networks",
    "perfedavg",
    "randconv",
    "rc",
    "register",
    "rsc",
    "run",
    "sam",
    "scaffold",
    "sgd",
    "sha",
    "testing",
    "tree",
    "vrex",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _PLACES:
        module, _, attribute = _PLACES[name].partition(":")
        found = getattr(import_module(module, __name__), attribute or name)
    elif name.startswith("_") or (place := _factories().get(name)) is None:
        raise AttributeError(f"module 'fedbeyond' has no attribute {name!r}")
    else:
        from ._factory import exposed

        module, _, attribute = place.partition(":")
        found = exposed(getattr(import_module(module), attribute))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


def _factories() -> dict[str, str]:
    """Return the methods, wrappers and optimizers by name: "module:function" of each."""
    from ._factory import places
    from .methods import PLACES as METHODS
    from .wrappers import PLACES as WRAPPERS

    return {**METHODS, **WRAPPERS, **places("optimizers", "adam sam sgd")}
