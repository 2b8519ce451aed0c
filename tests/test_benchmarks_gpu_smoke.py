"""The script for people with a GPU, on the CPU: its lines, its table, its exit codes."""

import re
import sys

import pytest
import torch

from fedbeyond.experiment.registry import REGISTRY
from support.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_smoke


def test_every_method_and_every_wrapper_has_a_line():
    names = {part for name in gpu_smoke.METHODS for part in re.sub(r"\([^)]*\)", "", name).split("+")}
    assert names == {*REGISTRY["methods"], *REGISTRY["wrappers"]}


@pytest.mark.slow
def test_a_method_that_fails_is_named_and_the_others_run_with_workers_and_after_a_stop_to_the_same_bits(capsys):
    assert gpu_smoke.main(["--device", "cpu", "--methods", "fedavgg, fedsb+rc+ga, ndag, fedavg+dp"]) == 1
    out = capsys.readouterr().out
    assert "[3/8] ndag(width=4, warmup=0) ok" in out
    assert re.search(r"^fedavgg +- +-  failed: ConfigError: method 'fedavgg' is not known; did you mean", out, re.M)
    for name in ("fedsb+rc+ga", "ndag(width=4, warmup=0)", "fedavg+dp"):
        assert re.search(rf"^{re.escape(name)} +\d+\.\d{{3}} +\d+\.\d{{3}}$", out, re.M)
    assert "skipped: it is for CUDA" in out
    last = out.splitlines()[-1]
    assert last.startswith("gpu_smoke: fedbeyond ") and f"torch {torch.__version__}" in last
    assert "; 6 ok, 1 failed, 1 skipped (fedavgg); two workers: equal to the bit" in last
    assert "; stopped and resumed: equal to the bit; " in last


def test_states_that_differ_on_a_cpu_are_a_failure_and_on_cuda_a_remark(tmp_path):
    from fedbeyond.experiment import checkpoint, run_folder

    for name, value in (("one", 1.0), ("other", 1.5)):
        (tmp_path / name).mkdir()
        checkpoint.save(tmp_path / name / run_folder.CHECKPOINT, {"weight": torch.tensor([value, 0.0])})
    with pytest.raises(AssertionError, match=r"^not equal: the largest difference is 0.5$"):
        gpu_smoke.comparison(tmp_path / "one", tmp_path / "other", "cpu")
    assert gpu_smoke.comparison(tmp_path / "one", tmp_path / "other", "cuda").startswith("not equal")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_so_and_ends_with_2(capsys):
    assert gpu_smoke.main([]) == 2
    assert "or give --device cpu to try the script itself" in capsys.readouterr().err
