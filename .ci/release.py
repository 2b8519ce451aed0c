"""Build the sdist and the wheel into dist/ and check what a release would upload. Nothing is uploaded.

python .ci/release.py            before a release: versions agree, and the changelog has its section
python .ci/release.py --draft    at any time: the changelog may start with [Unreleased]
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 1_000_000  # bytes of one file
DATA = {".csv", ".gz", ".h5", ".jsonl", ".mat", ".npy", ".npz", ".onnx", ".pkl", ".pt", ".pth", ".safetensors", ".zip"}
MACHINE = re.compile(rb"(?<![\w.$}])/(?:home|Users)/(?!x/|you/)[\w.-]+|(?<![\w.$}])/root/")  # tests use x and you
RELATIVE = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def version_problems(root: Path, draft: bool) -> Iterator[str]:
    """Yield how the versions of package, citation and changelog disagree."""
    version = found(r'^__version__ = "(.*)"$', root / "src/fedbeyond/__init__.py")
    citation = root / "CITATION.cff"
    if (cited := found(r"^version: (.*)$", citation)) != version:
        yield f"CITATION.cff has version {cited}, the package {version}; write the same into both"
    heading = found(r"^## \[(.*?)\]", root / "CHANGELOG.md")
    if heading == "Unreleased" and draft:
        return
    if heading != version:
        yield f"CHANGELOG.md starts with [{heading}], the package has {version}; head the section [{version}] - DATE"
    elif (day := found(r"^## \[.*?\] - (.*)$", root / "CHANGELOG.md")) != found(r"^date-released: (.*)$", citation):
        yield f"CHANGELOG.md dates {version} {day}, CITATION.cff another day; write the same into both"


def found(pattern: str, path: Path) -> str:
    """Return the first match of a pattern in a file; empty if there is none."""
    match = re.search(pattern, path.read_text("utf-8"), re.M)
    return match[1] if match else ""


def sdist_problems(path: Path, tracked: set[str], machine: str) -> Iterator[str]:
    """Yield what must not be in a sdist: files that git does not know, data, large files, paths of this computer."""
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            content = archive.extractfile(member)
            if content is None or name == "PKG-INFO":
                continue
            if name not in tracked:
                yield f"{name} is not in git"
            if Path(name).suffix in DATA and not name.startswith("src/"):
                yield f"{name} is data"
            if member.size > LARGEST:
                yield f"{name} has {member.size} bytes, more than {LARGEST}"
            text = content.read()
            if (path_inside := MACHINE.search(text)) or machine.encode() in text:
                yield f"{name} has a path of a computer: {path_inside[0].decode() if path_inside else machine}"


def wheel_problems(path: Path) -> Iterator[str]:
    """Yield the links of the description that a package index could not resolve."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode().partition("\n\n")[2]
    if "# fedbeyond" not in description:
        yield "the description is not README.md"
    yield from (
        f"README.md links to {link}, which a package index does not have" for link in RELATIVE.findall(description)
    )


def check(problems: Iterator[str]) -> None:
    """End with the list of problems, if there are any."""
    if listed := sorted(set(problems)):
        sys.exit("\n".join(["error: this is not ready for a release", *(f"  {problem}" for problem in listed)]))


def run(*words: str | Path) -> None:
    """Run a command; end if it fails."""
    if code := subprocess.run(words, check=False).returncode:
        sys.exit(code)


def main() -> None:
    check(version_problems(ROOT, "--draft" in sys.argv))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    check(sdist_problems(sdist, set(files.split("\0")), str(ROOT)))
    check(wheel_problems(wheel))
    run(ROOT / ".ci" / "wheel", wheel)
    print(f"ready: {sdist.relative_to(ROOT)}, {wheel.relative_to(ROOT)}; docs/release.md has the next steps")


if __name__ == "__main__":
    main()
