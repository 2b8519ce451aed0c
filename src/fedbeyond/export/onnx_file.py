"""Write a model as an ONNX file that computes calibrated probabilities in any ONNX runtime, without torch.

The input is images as decoders return them: bytes in rows of pixels. The output is probabilities. Scaling, the order of
channels and the temperature are inside the file, so that a user cannot get them wrong. The output is compared with
torch's before the file is written.
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
TOLERANCE = 1e-4  # largest accepted difference of a probability from torch's
PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def require_packages() -> None:
    """Raise ConfigError if a package that the export needs is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--onnx needs {', '.join(missing)}; pip install 'fedbeyond[onnx]', or leave out --onnx")


class Calibrated(nn.Module):
    """A network from image bytes or table rows to calibrated probabilities."""

    def __init__(self, net: nn.Module, temperature: float) -> None:
        super().__init__()
        self.net, self.temperature = net, temperature

    def forward(self, inputs: Tensor) -> Tensor:
        x = pixels(inputs.permute(0, 3, 1, 2)) if inputs.dtype == torch.uint8 else inputs
        return (self.net(x) / self.temperature).softmax(1)  # type: ignore[no-any-return]


def to_onnx(net: nn.Module, card: dict[str, Any], samples: Sequence[Tensor]) -> tuple[bytes, dict[str, Any]]:
    """Return the file's contents and its entry in the card; `samples` are images or rows of the sites to test it on.

    The file is tested on all samples as one batch and on the first alone, as it accepts any batch size.
    """
    calibrated = Calibrated(net, float(card["temperature"])).eval()
    inputs = to_pixel_rows(torch.cat(list(samples)))
    content = convert(calibrated, inputs[:2], card)
    gap = max(difference(content, calibrated, batch) for batch in (inputs, inputs[:1]))
    if not gap <= TOLERANCE:
        raise ConfigError(
            f"{card['network']} as ONNX gives probabilities that differ from torch's by {gap:.2g}, more than "
            f"{TOLERANCE:g}; nothing was written: export without --onnx"
        )
    size = " x ".join(["any number", *map(str, inputs.shape[1:])])
    entry = {
        "file": FILE,
        "opset": OPSET,
        "input": f"'{input_name(inputs)}', {'bytes (uint8)' if inputs.dtype == torch.uint8 else 'float32'}, {size}",
        "output": f"'probabilities', float32, any number x {len(card['classes'])}: calibrated, sum 1",
        "tested_on": len(inputs),
        "largest_difference": float(f"{gap:.2g}"),
        "versions": {package: version(package) for package in ("torch", *PACKAGES)},
    }
    return content, entry


def to_pixel_rows(x: Tensor) -> Tensor:
    """Convert images to rows of RGB pixels; return other inputs unchanged."""
    return x.permute(0, 2, 3, 1).contiguous() if x.dtype == torch.uint8 else x


def input_name(inputs: Tensor) -> str:
    """Return the name of the ONNX input."""
    return "images" if inputs.ndim == 4 else "rows"


def convert(net: nn.Module, example: Tensor, card: dict[str, Any]) -> bytes:
    """Convert a network to ONNX."""
    try:
        with torch.no_grad(), quiet():
            from onnx import helper

            program = torch.onnx.export(
                net,
                (torch.cat([example, example]),),  # with a batch of one the exporter would fix the batch size
                dynamo=True,
                opset_version=OPSET,
                input_names=[input_name(example)],
                output_names=["probabilities"],
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


def difference(content: bytes, net: nn.Module, inputs: Tensor) -> float:
    """Return the largest difference between the probabilities of onnxruntime and torch; NaN if one is NaN."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would write ids into the user's home
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        outputs = session.run(["probabilities"], {input_name(inputs): inputs.numpy()})[0]
    except Exception as error:  # onnxruntime has no base class for its errors
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"onnxruntime cannot run the model ({reason}); export without --onnx") from error
    with torch.no_grad():
        return float(np.abs(outputs - net(inputs).numpy()).max())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's logs and warnings, which a user cannot act upon."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for category in (FutureWarning, DeprecationWarning):
                warnings.filterwarnings("ignore", category=category, module=r"torch\.|onnx|copyreg")
            yield
    finally:
        logging.disable(disabled)
