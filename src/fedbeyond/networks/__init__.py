"""Networks: classifiers (each imported when it is first used), your own, generators, pretrained weights, BatchNorm."""

from typing import TYPE_CHECKING

from .._factory import namespace, places

if TYPE_CHECKING:
    from ._alexnet import alexnet as alexnet
    from ._convnet import convnet as convnet
    from ._mlp import mlp as mlp
    from ._mobilenet import mobilenet_v2 as mobilenet_v2
    from ._resnet import resnet18 as resnet18
    from ._resnet import resnet34 as resnet34
    from ._resnet import resnet50 as resnet50
    from ._resnet import resnet101 as resnet101
    from ._resnet import resnet152 as resnet152
    from ._vit import vit_b_16 as vit_b_16
    from ._vit import vit_b_32 as vit_b_32
    from .external import timm as timm
    from .external import torchvision as torchvision
    from .own import classifier as classifier

PLACES = {
    **places("networks._*", "convnet"),
    **places("networks._resnet", "resnet18 resnet34 resnet50 resnet101 resnet152"),
    **places("networks._*", "alexnet"),
    **places("networks._vit", "vit_b_16 vit_b_32"),
    **places("networks._mobilenet", "mobilenet_v2"),
    **places("networks._*", "mlp"),
    **places("networks.external", "timm torchvision"),
}

OWN = places("networks.own", "classifier")  # it takes modules, so that it has no spec

__getattr__, __dir__ = namespace(__name__, PLACES, OWN)
