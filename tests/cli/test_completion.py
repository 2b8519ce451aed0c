"""What a shell gets when Tab is pressed, in a process of its own as the shell starts it."""

import os
import subprocess
import sys

import pytest

CODE = """import sys
sys.argv = ["fedbeyond"]
from fedbeyond.cli.main import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def offered(*words):
    """Return the words offered for the last of these, as bash asks for them."""
    asked = {"COMP_WORDS": " ".join(["fedbeyond", *words]), "COMP_CWORD": str(len(words))}
    environment = os.environ | {"_FEDBEYOND_COMPLETE": "complete_bash"} | asked
    ended = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr == "False\n", ended.stderr  # torch was not imported
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "-m", "fedp"], ["fedprox"]),
        (["run", "-m", "fedavg+g"], ["fedavg+ga"]),
        (["run", "--method", "fedsb+ga+a"], ["fedsb+ga+am", "fedsb+ga+augmix"]),
        (["run", "--target", ""], ["photo", "painting", "cartoon", "sketch"]),
        (["run", "--device", "c"], ["cpu", "cuda"]),
        (["list", "w"], ["wrappers"]),
        (["list", "mix"], ["mixup", "mixstyle"]),
        (["list", "cos"], ["cosine"]),
        (["list", "--format", ""], ["text", "markdown"]),
        (["report", "runs", "--select", "source"], ["source-validation", "source-validation-balanced"]),
        (["report", "runs", "--metric", "auc"], ["auc", "auc_weighted"]),
        (["report", "runs", "--format", ""], ["text", "markdown", "latex", "csv", "html"]),
        (["report", "runs", "--beside", "g"], ["ga"]),
        (["report", "runs", "--baseline", "fedprox+s"], ["fedprox+sha"]),
        (["figure", "t"], ["tsne"]),
        (["figure", "cam", "runs", "-m", "fedavg+r"], ["fedavg+rc"]),
        (["data", "info", "p"], ["pacs"]),
        (["data", "check", "folder", "--as", "v"], ["vlcs"]),
        (["ben"], ["bench"]),
    ],
)
def test_a_word_is_completed_without_torch(words, expected):
    assert offered(*words) == expected


def test_every_method_is_offered():
    from fedbeyond.methods import PLACES

    assert offered("run", "-m", "") == list(PLACES)
