"""What `make release` refuses."""

import io
import tarfile
import zipfile
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from support.paths import ROOT


@pytest.fixture(scope="module")
def release():
    spec = spec_from_file_location("release", ROOT / ".ci" / "release.py")
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def project(folder, package="1.0", cited="1.0", heading="[1.0] - 2030-01-02"):
    (folder / "src/fedbeyond").mkdir(parents=True)
    (folder / "src/fedbeyond/__init__.py").write_text(f'__version__ = "{package}"\n')
    (folder / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {cited}\ndate-released: 2030-01-02\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n## [0.9] - 2029-01-01\n")
    return folder


@pytest.mark.parametrize(
    ("versions", "draft", "refused"),
    [
        ({}, False, ""),
        ({"cited": "0.9"}, False, "CITATION.cff has version 0.9, the package 1.0"),
        ({"heading": "[Unreleased]"}, False, "starts with [Unreleased], the package has 1.0"),
        ({"heading": "[Unreleased]"}, True, ""),
        ({"heading": "[Unreleased]", "cited": "0.9"}, True, "CITATION.cff has version 0.9"),
        ({"heading": "[1.0] - 2030-01-03"}, False, "CHANGELOG.md dates 1.0 2030-01-03"),
    ],
)
def test_versions_of_package_citation_and_changelog_agree(release, tmp_path, versions, draft, refused):
    problems = list(release.version_problems(project(tmp_path, **versions), draft))
    assert len(problems) == bool(refused) and all(refused in problem for problem in problems)


def test_a_sdist_has_no_data_large_or_unknown_files_and_no_paths_of_a_computer(release, tmp_path):
    files = {
        "PKG-INFO": b"",
        "README.md": b"see /home/you/data",
        "notes.txt": b"",
        "big.md": b"x" * 1_000_001,
        "runs.jsonl": b"{}",
        "src/papers.csv": b"a table of the package",
        "a.py": b"open('/home/ann/x')",
        "b.py": b"in /somewhere/checkout/src",
    }
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"fedbeyond-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    problems = release.sdist_problems(tmp_path / "x.tar.gz", set(files) - {"notes.txt"}, "/somewhere/checkout")
    assert list(problems) == [
        "notes.txt is not in git",
        "big.md has 1000001 bytes, more than 1000000",
        "runs.jsonl is data",
        "a.py has a path of a computer: /home/ann",
        "b.py has a path of a computer: /somewhere/checkout",
    ]


def test_the_description_in_a_wheel_links_only_to_addresses(release, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        text = "Name: x\n\n# fedbeyond\n[a](docs/a.md) [b](https://b.c) [d](#e) ![f](f.png)"
        archive.writestr("fedbeyond-1.0.dist-info/METADATA", text)
    assert [problem.split()[3].rstrip(",") for problem in release.wheel_problems(tmp_path / "x.whl")] == [
        "docs/a.md",
        "f.png",
    ]
