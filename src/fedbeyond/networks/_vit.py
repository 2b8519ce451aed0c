"""Vision transformers (Dosovitskiy et al., ICLR 2021, https://arxiv.org/abs/2010.11929), named as in torchvision."""

import math
import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ..classifier import Classifier, Task
from ..errors import ConfigError
from . import weights as files

WIDTH, DEPTH, HEADS, INSIDE = 768, 12, 12, 3072  # "base" in the paper's table 1
POSITIONS = "encoder.pos_embedding"


class Vision(Classifier):
    """A transformer over patches and a class token, and a linear head on the output of the class token."""

    body: "Body"
    provides = frozenset({"features", "maps"})  # the head acts on the class token, not on an average of the maps

    cuts = tuple(f"body.encoder.layers.encoder_layer_{index}" for index in range(DEPTH - 1))

    def __init__(self, body: "Body", classes: int) -> None:
        super().__init__(body, WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def maps(self, x: Tensor) -> Tensor:
        """Return the outputs of the patches as maps."""
        return self.maps_and_logits(x)[0]

    def maps_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the patches as maps, and the logits, in one forward pass."""
        tokens = self.body(files.normalised(x))
        return tokens[:, 1:].transpose(1, 2).unflatten(2, self.body.grid), self.head(tokens[:, 0])

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the class token."""
        return self.body(files.normalised(x))[:, 0]  # type: ignore[no-any-return]


class Body(nn.Module):
    """A vision transformer without its last layer: images to tokens, the class token first."""

    def __init__(self, patch: int, height: int, width: int) -> None:
        super().__init__()
        self.grid = (height // patch, width // patch)
        self.conv_proj = nn.Conv2d(3, WIDTH, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.encoder = Encoder(positions=1 + math.prod(self.grid))
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * patch * patch)))
        assert self.conv_proj.bias is not None
        nn.init.zeros_(self.conv_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(x.shape[0], -1, -1), patches), 1)
        return self.encoder(tokens)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Position embeddings, the transformer layers, and a LayerNorm."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, positions, WIDTH).normal_(std=0.02))
        self.layers = nn.Sequential()
        for index in range(DEPTH):
            self.layers.add_module(f"encoder_layer_{index}", Layer())
        self.ln = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.ln(self.layers(tokens + self.pos_embedding))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A transformer layer: self-attention, then two linear layers per token, each with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-6)
        wider, narrower = nn.Linear(WIDTH, INSIDE), nn.Linear(INSIDE, WIDTH)
        self.mlp = nn.Sequential(wider, nn.GELU(), nn.Dropout(0.0), narrower, nn.Dropout(0.0))
        for linear in (wider, narrower):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.ln_1(tokens)
        tokens = tokens + self.self_attention(normed, normed, normed, need_weights=False)[0]
        return tokens + self.mlp(self.ln_2(tokens))  # type: ignore[no-any-return]


def vit_b_16(weights: files.Weights = "") -> Callable[[Task], Classifier]:
    """Build ViT-B/16; parameters have the names of torchvision's."""
    return partial(_vit, "vit_b_16", 16, weights)


def vit_b_32(weights: files.Weights = "") -> Callable[[Task], Classifier]:
    """Build ViT-B/32; parameters have the names of torchvision's."""
    return partial(_vit, "vit_b_32", 32, weights)


def _vit(name: str, patch: int, file: str, task: Task) -> Classifier:
    files.require_colours(task, name)
    _, height, width = task.shape
    if height % patch or width % patch:
        raise ConfigError(
            f"{name} needs height and width divisible by {patch}, these images have {height} x {width}; "
            f"set the dataset's size to a multiple of {patch}"
        )
    tensors = files.read(file) if file else {}
    _require_positions(name, patch, file, tensors, task)
    net = Vision(Body(patch, height, width), len(task.classes))
    return files.load(net, file, "heads.head", {_renamed(key): tensors[key] for key in tensors}) if file else net


def _require_positions(name: str, patch: int, file: str, tensors: dict[str, Tensor], task: Task) -> None:
    """Raise `ConfigError` if the file's position embeddings are for images of another size."""
    _, height, width = task.shape
    if POSITIONS in tensors and tensors[POSITIONS].ndim == 3:
        trained = tensors[POSITIONS].shape[1] - 1
        if trained != (height // patch) * (width // patch):
            size = math.isqrt(trained) * patch
            raise ConfigError(
                f"weights {file}: for {name} on images of {size} x {size} pixels, these have {height} x {width}; "
                f"set the dataset's size={size}, or use weights for the size of these images"
            )


def _renamed(key: str) -> str:
    """Map the names of the two linear layers in torchvision's published files to those of its networks."""
    return re.sub(r"\.mlp\.linear_([12])\.", lambda match: f".mlp.{3 * int(match[1]) - 3}.", key)
