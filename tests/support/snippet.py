"""The first Python of README.md with less data and fewer rounds: python tests/support/snippet.py > snippet.py"""

import re

if __name__ == "__main__":
    from paths import ROOT
else:
    from .paths import ROOT

SMALLER = {
    "datasets.styles()": "datasets.styles(share=0.1)",
    "rounds=10": "rounds=3",
    "seeds=3": "seeds=1, rounds=3",
}


def smaller(code: str) -> str:
    """Return Python of a page with less work: a share of the data, three rounds, one seed."""
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    return code


def snippet(pandas: bool = True) -> str:
    """Return README's snippet, smaller; without pandas, which is optional, its line is left out."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert all(long in code for long in SMALLER)
    return smaller(code if pandas else code.replace("run.history.to_pandas()", "run.history"))


if __name__ == "__main__":
    print(snippet(pandas=False))
