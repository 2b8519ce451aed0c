"""A model as one ONNX file, which gives calibrated chances wherever there is an ONNX runtime, without torch.

Images go in as decoders give them, bytes in rows of pixels, and chances come out: scaling, the order of channels and
the temperature are inside the file, so that nobody can get them wrong. What is written was tried beside torch before.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..images import pixels

FILE = "model.onnx"
OPSET = 18
CLOSE = 1e-4  # how far a chance may be from torch's
PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def require_packages() -> None:
    """Refuse to begin without what is needed to end."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--onnx needs {', '.join(missing)}; pip install 'fedbeyond[onnx]', or leave out --onnx")


class Portable(nn.Module):
    """A network from what a file or a table holds to calibrated chances."""

    def __init__(self, net: nn.Module, heat: float) -> None:
        super().__init__()
        self.net, self.heat = net, heat

    def forward(self, given: Tensor) -> Tensor:
        x = pixels(given.permute(0, 3, 1, 2)) if given.dtype == torch.uint8 else given
        return (self.net(x) / self.heat).softmax(1)  # type: ignore[no-any-return]


def portable(net: nn.Module, card: dict[str, Any], samples: Sequence[Tensor]) -> tuple[bytes, dict[str, Any]]:
    """The file's contents, and what the card says of it; `samples` are images or rows to try it on, as sites hold them.

    The file is tried on them all at once and on the first alone: it takes any number.
    """
    whole = Portable(net, float(card["temperature"])).eval()
    given = as_files_have_them(torch.cat(list(samples)))
    content = converted(whole, given[:2], card)
    gap = max(difference(content, whole, some) for some in (given, given[:1]))
    if not gap <= CLOSE:
        raise ConfigError(
            f"{card['network']} as ONNX gives chances that are {gap:.2g} away from torch's, {CLOSE:g} is the most that "
            "is let pass; nothing was written: export without --onnx"
        )
    size = " x ".join(["any number", *map(str, given.shape[1:])])
    told = {
        "file": FILE,
        "opset": OPSET,
        "input": f"'{name(given)}', {'bytes (uint8)' if given.dtype == torch.uint8 else 'float32'}, {size}",
        "output": f"'chances', float32, any number x {len(card['classes'])}: of each class, calibrated, adding up to 1",
        "tried_on": len(given),
        "largest_difference": float(f"{gap:.2g}"),
        "versions": {package: version(package) for package in ("torch", *PACKAGES)},
    }
    return content, told


def as_files_have_them(x: Tensor) -> Tensor:
    """Images as rows of pixels, each red, green and blue; what is no bytes as it is."""
    return x.permute(0, 2, 3, 1).contiguous() if x.dtype == torch.uint8 else x


def name(given: Tensor) -> str:
    """What the input is called."""
    return "images" if given.ndim == 4 else "rows"


def converted(whole: nn.Module, example: Tensor, card: dict[str, Any]) -> bytes:
    """A network as ONNX."""
    try:
        with torch.no_grad(), quiet():
            from onnx import helper

            program = torch.onnx.export(
                whole,
                (torch.cat([example, example]),),  # of one alone the exporter would think that it stays so
                dynamo=True,
                opset_version=OPSET,
                input_names=[name(example)],
                output_names=["chances"],
                dynamic_shapes=({0: torch.export.Dim("number")},),
                verbose=False,
            )
            assert program is not None
            model = program.model_proto
            helper.set_model_props(model, {"classes": json.dumps(card["classes"])})
            return bytes(model.SerializeToString())
    except (torch.onnx.errors.OnnxExporterError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{card['network']} cannot be written as ONNX ({reason}); export without --onnx") from error


def difference(content: bytes, whole: nn.Module, given: Tensor) -> float:
    """The largest difference between a chance that onnxruntime computes and torch's; NaN is no small one."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would note ids in the user's home
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        found = session.run(["chances"], {name(given): given.numpy()})[0]
    except Exception as error:  # onnxruntime has no class of its own for what it cannot do
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"onnxruntime cannot run the model ({reason}); export without --onnx") from error
    with torch.no_grad():
        return float(np.abs(found - whole(given).numpy()).max())


@contextmanager
def quiet() -> Iterator[None]:
    """What the exporter says of itself and its packages is nothing that a user could act upon."""
    talkers = [
        logging.getLogger(path) for path in ("torch.onnx._internal.exporter._registration", "onnxscript", "onnx_ir")
    ]
    levels = [talker.level for talker in talkers]
    for talker in talkers:
        talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for category in (FutureWarning, DeprecationWarning):
                warnings.filterwarnings("ignore", category=category, module=r"torch\.|onnx|copyreg")
            yield
    finally:
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)
