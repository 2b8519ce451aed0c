"""Files with mistakes that users make: folders of images, tables, plugins, weights, configurations."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

BUGGY = """
from dataclasses import replace
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg

def buggy():
    "Divide by zero at every site."
    def train(site, received, private):
        return 1 / 0
    return replace(fedavg(), client=fedavg().client._replace(handlers={"train": train}))

registry.register("methods", "buggy", buggy)
"""
NONE = """
from fedbeyond.experiment import registry

def mine():
    "Forget to return the method."

registry.register("methods", "mine", mine)
"""


def write_all(root: Path) -> None:
    """Write every input below `root`."""
    write_folders(root)
    write_tables(root / "tables")
    write_others(root)


def image(
    path: Path, value: int | tuple[int, ...] = 100, size: tuple[int, int] = (8, 8), mode: str = "RGB", **options: object
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value, 50, 20) if mode == "RGB" else value).save(path, **options)


def folder(root: Path, domains: str = "abc", classes: str = "xy", count: int = 4) -> Path:
    """Write a folder of small images, laid out as domain/class/image."""
    for path in (root / domain / kind / f"{i}.png" for domain in domains for kind in classes for i in range(count)):
        image(path, 20 + 10 * int(path.stem))
    return root


def write_folders(root: Path) -> None:
    folder(root / "good")
    for name, content in {"truncated": None, "empty-file": b"", "text": b"this is text", "bomb": bomb()}.items():
        path = folder(root / name) / "a" / "x" / "0.png"
        path.write_bytes(path.read_bytes()[:40] if content is None else content)
    cut = folder(root / "cut-jpeg") / "a" / "x" / "9.jpg"
    image(cut, size=(64, 64))
    cut.write_bytes(cut.read_bytes()[:300])
    image(folder(root / "deep") / "a" / "x" / "9.png", 40_000, mode="I;16")
    odd = folder(root / "odd") / "a" / "x"
    image(odd / "print.jpg", (10, 20, 30, 40), mode="CMYK")
    image(odd / "moving.gif", 3, mode="P", save_all=True, append_images=[Image.new("P", (8, 8), 9)])
    image(odd / "it's [a] näme, 日本, 50%.PNG")
    image(odd / ("long" * 60 + ".png"))
    image(odd / "large.png", size=(3000, 20))
    image(odd / "glass.png", (1, 2, 3, 4), mode="RGBA")
    folder(root / "one-domain", "a")
    folder(root / "one-class", classes="x")
    (root / "nothing").mkdir()
    (root / "arrays").mkdir()
    np.savez(root / "arrays" / "a.npz", x=np.zeros((4, 8, 8, 3), np.uint8), y=np.arange(4) % 2)
    for i in range(3):
        image(root / "bare" / f"{i}.png")
        image(root / "flat" / "a" / f"{i}.png")
        image(folder(root / "other-class") / "b" / "Z" / f"{i}.png")
    os.symlink("nowhere.png", folder(root / "dead-link") / "a" / "x" / "dead.png")


def bomb() -> bytes:
    """Return a small PNG file that claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def write_tables(root: Path) -> None:
    root.mkdir()
    rows = [f"h{site},{50 + i},{i % 3},{'ill' if i % 2 else 'well'}" for site in "ABC" for i in range(20)]
    first, *rest = rows
    features = [row.rpartition(",")[0] for row in rows]
    head = "site,age,sort,label"
    tables = {
        "good": (head, rows),
        "bad-cell": (head, [first.replace("50", "6o"), *rest]),
        "infinite": (head, [first.replace("50", "inf"), *rest]),
        "comma": (head, [first.replace("50", '"52,5"'), *rest]),
        "case": (head, [rows[1].replace("ill", "ILL"), rows[3].replace("ill", " ill"), *rows]),
        "regression": (head, [f"{row},{i * 0.37:.2f}" for i, row in enumerate(features)]),
        "no-label": (head, [f"{features[0]},", *rest]),
        "short": (head, [features[0], *rest]),
        "long": (head, [f"{first},9", *rest]),
        "empty": (head, []),
        "twice": ("site,age,age,label", rows),
        "one-site": (head, rows[:20]),
        "one-class": (head, [row.replace("well", "ill") for row in rows]),
        "ids": (f"patient,{head}", [f"p{i:04},{row}" for i, row in enumerate(rows)]),
    }
    for name, (header, lines) in tables.items():
        (root / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    (root / "zero.csv").write_bytes(b"")
    (root / "binary.csv").write_bytes(bytes(range(256)) * 4)


def write_others(root: Path) -> None:
    plugins = {
        "syntax": "def f(:\n",
        "raises": "x = 1\nraise RuntimeError('boom')\n",
        "imports": "import nosuchpackage\n",
        "none": NONE,
        "bug": BUGGY,
    }
    (root / "plugins").mkdir()
    for name, text in plugins.items():
        (root / "plugins" / f"{name}.py").write_text(text)
    (root / "weights").mkdir()
    (root / "weights" / "text.safetensors").write_text("hello")
    (root / "weights" / "empty.safetensors").write_bytes(b"")
    (root / "weights" / "junk.pth").write_bytes(b"PK\x03\x04junk")
    save_file({"a": np.zeros(3, np.float32)}, root / "weights" / "other.safetensors")
    configs = {"bad": b"method = ", "unknown": b"metod = 'x'", "type": b"[train]\nrounds='x'", "latin": b"a = '\xe9'"}
    (root / "toml").mkdir()
    for name, content in configs.items():
        (root / "toml" / f"{name}.toml").write_bytes(content)
    (root / "file").write_text("a file\n")
