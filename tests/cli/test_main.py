"""The command line as a person meets it: what it prints, what it says of mistakes, how it ends."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedbeyond import NUMERICS, WIRE, __version__
from fedbeyond.cli import main
from fedbeyond.experiment import bench, registry
from fedbeyond.experiment.config import Config

ALONE = ["--jobs", "1", "--workers", "1"]
SMALL = [
    "--set", "data=styles(share=0.05)", "--set", "network=convnet(width=4)", "--set", "train.rounds=2",
    "--set", "train.batch_size=8",
]  # fmt: skip


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_answer_in_half_a_second_without_torch(option):
    code = "import sys; import fedbeyond.cli.main; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    times = []
    for _ in range(5):  # the processor's time: others may be at work beside
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fedbeyond", option], check=True, capture_output=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    assert min(times) < 0.5


def test_the_version_is_printed_with_those_of_results_and_messages(call):
    assert call("--version") == (0, f"fedbeyond {__version__} (results {NUMERICS}, messages {WIRE})\n", "")


def test_a_run_does_without_torchs_compiler_which_takes_two_seconds_to_import(tmp_path):
    words = ["fedbeyond", "run", "-m", "fedgca+sha", "-t", "photo", *SMALL, "--out", str(tmp_path)]
    code = f"""import atexit, os, sys
import fedbeyond.cli.main
atexit.register(lambda: os._exit(20 + any(name in sys.modules for name in ("torch._dynamo", "sympy"))))
sys.argv = {words!r}
fedbeyond.cli.main.main()
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 20 and "2 rounds done" in done.stdout, done.stderr


def test_one_run_ends_with_its_numbers_under_every_rule(call, tmp_path):
    code, out, err = call("run", "-m", "fedavg", "-t", "photo", *SMALL, "--out", tmp_path)
    assert code == 0 and "fedavg, photo unseen, seed 0: 2 rounds done" in out
    assert all(rule in out for rule in ("source-validation", "last", "oracle"))
    assert err.count("round 2/2, own ") == 1 and "\x1b" not in err
    again = call("run", "-m", "fedavg", "-t", "photo", *SMALL, "--out", tmp_path)
    assert (again[0], again[2]) == (0, "") and "2 rounds done; nothing to do\n" in again[1]
    *same, see = again[1].replace("; nothing to do", "").splitlines()
    assert same == out.splitlines() and see.startswith(f"to see them: fedbeyond report {tmp_path}; for more rounds: ")


def test_a_bench_compares_skips_what_is_done_and_writes_its_page(call, tmp_path):
    grid = ["--set", 'bench.methods=["fedavg", "fedavg+ga"]', "--set", 'bench.targets=["photo", "sketch"]']
    code, out, err = call("bench", *SMALL, *grid, *ALONE, "--out", tmp_path)
    assert code == 0 and "4 runs: 0 done, 4 to go" in out and err.count("round 2/2, own ") == 4
    for method in ("fedavg", "fedavg+ga"):
        assert all(err.count(f"/4 {method}, {target} unseen, seed 0: ") == 1 for target in ("photo", "sketch"))
    assert "fedavg+ga" in out.split("average\n")[1] and (tmp_path / "report.html").exists()
    code, out, _ = call("bench", *SMALL, *grid, *ALONE, "--out", tmp_path)
    assert code == 0 and "4 runs: 4 done, nothing to do" in out and f"again: fedbeyond report {tmp_path}\n" in out
    assert "to watch" not in out and "fedavg+ga" in out.split("average\n")[1]  # the table is printed again
    code, out, _ = call("report", tmp_path, "--format", "markdown", "--select", "last")
    assert code == 0 and out.startswith("| method | photo | sketch | average |") and "last round" in out
    code, _, err = call("report", tmp_path, "--select", "luck")
    assert code == 2 and "selection rule 'luck' is not known" in err
    code, out, _ = call("report", tmp_path, "--format", "html", "--out", tmp_path / "page.html")
    assert code == 0 and str(tmp_path / "page.html") in out and "<html" in (tmp_path / "page.html").read_text()


def test_the_next_run_is_one_of_an_unknown_method_then_one_that_takes_longest(tmp_path):
    methods, targets = ("fedavg", "feddag", "fedsb"), ("photo", "sketch")
    todo = [(Config(method=m, target=t), tmp_path / m / t) for t in targets for m in methods]
    waiting = {folder: cell for cell, folder in todo}
    order = []
    while waiting:
        folder = bench.next_run(waiting, todo)
        cell = waiting.pop(folder)
        order.append((cell.method, cell.target))
        folder.mkdir(parents=True)
        seconds = {"fedavg": 1.0, "feddag": 9.0, "fedsb": 2.0}[cell.method]
        (folder / "times.jsonl").write_text(json.dumps({"method": cell.method, "round": 0, "seconds": seconds}) + "\n")
        (folder / "done").touch()
    assert order == [*((m, "photo") for m in methods), ("feddag", "sketch"), ("fedsb", "sketch"), ("fedavg", "sketch")]


@pytest.mark.slow
def test_two_processes_share_a_bench_and_find_what_one_finds(call, tmp_path):
    grid = ["--set", 'bench.methods=["fedavg", "fedprox", "scaffold"]', "--set", 'bench.targets=["photo", "sketch"]']
    code, _, _ = call("bench", *SMALL, *grid, *ALONE, "--out", tmp_path / "one")
    assert code == 0
    code, two, _ = call("bench", *SMALL, *grid, "--out", tmp_path / "two", "--jobs", 2)
    assert code == 0 and "6 runs" in two
    for path in sorted((tmp_path / "one").rglob("results.jsonl")):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_a_method_that_breaks_down_does_not_stop_the_others(call, tmp_path):
    grid = ["--set", 'bench.methods=["fedprox(mu=1e30)", "fedavg"]', "--set", 'bench.targets=["photo"]']
    code, _, err = call("bench", *SMALL, *grid, *ALONE, "--out", tmp_path)
    assert code == 2 and "1 of 2 runs failed: fedprox(mu=1e+30), photo unseen" in err
    assert (tmp_path / "fedavg" / "photo" / "seed-0" / "done").exists()


def test_check_prints_the_plan_and_what_leaves_without_training(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("check", *SMALL, "--set", 'bench.methods=["scaffold+ga", "fedsb"]')
    assert code == 0 and "8 runs of 2 rounds" in out and not list(tmp_path.iterdir())
    assert "control" in out and "ga_received" in out and "scalars" in out and "parameters" in out


def test_check_plans_a_known_dataset_that_is_not_there(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('method = "fedavg+ga"\ndata = "officehome"\nnetwork = "resnet18"\n')
    code, out, err = call("check", recipe)
    assert (code, err) == (0, "") and "4 runs of 20 rounds on officehome" in out
    assert "data: not found (data/officehome: no such folder; expected" in out and "real_world" in out
    assert "resnet18 with 11,209,857 parameters" in out and "ga_received" in out  # 11,176,512 and a head of 65 x 513
    code, _, err = call("check", recipe, "--set", "target=moon")
    assert code == 2 and "no domain 'moon'; choose" in err
    code, _, err = call("run", recipe, "-t", "art")
    assert code == 2 and "error: data/officehome: no such folder; expected" in err


def test_list_prints_every_shelf(call):
    code, out, _ = call("list")
    assert code == 0 and all(word in out for word in ("fedavg", "ga", "styles", "convnet", "sgd", "cosine"))
    code, out, _ = call("list", "fedprox")
    assert (
        code == 0
        and "mu = 0.01  strength of the proximal term, mu in Eq. 2 [official: 0.1]" in out
        and "MLSys 2020" in out
    )


def test_data_show_writes_a_picture(call, tmp_path):
    code, out, _ = call("data", "show", "styles(share=0.02)", "--out", tmp_path / "grid.png")
    assert code == 0 and "sketch: 20 images of 7 classes" in out and (tmp_path / "grid.png").stat().st_size > 10_000


def test_a_split_is_written_and_used(call, tmp_path):
    grid = ["--set", "target=photo", "--set", "train.clients_per_domain=2"]
    code, out, _ = call("data", "split", *SMALL, *grid, "--out", tmp_path / "split.json")
    assert code == 0 and f"{tmp_path / 'split.json'}: 6 clients, photo unseen; use it with" in out
    use = ["--set", f"train.split={tmp_path / 'split.json'}"]
    code, out, _ = call("check", *SMALL, "--set", "target=photo", *use)
    assert code == 0 and "  sketch-1 " in out and "  photo            unseen, all " in out
    code, _, err = call("check", *SMALL, "--set", "target=photo", *use, "--set", "data=styles(share=0.04)")
    assert code == 2 and "split.json was made for other data: 'cartoon' has" in err


def test_a_plugin_brings_a_method_of_ones_own(call, tmp_path, monkeypatch):
    copied = {group: dict(names) for group, names in registry.REGISTRY.items()}
    monkeypatch.setattr(registry, "REGISTRY", copied)
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from fedbeyond.experiment.registry import register\nfrom fedbeyond.methods.fedavg import fedavg\n"
        "register('methods', 'mine', lambda optimizer: fedavg('uniform', optimizer))\n"
    )
    grid = ["--set", "bench.methods=['mine', 'mine+ga']", "--set", "target=photo", "--set", f"plugins=['{plugin}']"]
    code, out, _ = call("check", *SMALL, *grid)
    assert code == 0 and "2 runs" in out
    code, out, _ = call("bench", *SMALL, *grid, *ALONE, "--out", tmp_path / "runs")
    assert code == 0 and "mine+ga" in out
    plugin.write_text(plugin.read_text() + "# another method now\n")
    code, _, err = call("bench", *SMALL, *grid, *ALONE, "--out", tmp_path / "runs")
    assert code == 2 and "holds another run: plugins is" in err


def folder(root: Path, domains: dict[str, tuple[str, ...]]) -> str:
    from PIL import Image

    for domain, classes in domains.items():
        for name in classes:
            (root / domain / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (8, 8), (i, 0, 0)).save(root / domain / name / f"{i}.png")
    return f"data=folder(root='{root}', size=8)"


BAD = {
    "an unknown method": (["run", "-m", "fedavgg", "-t", "photo"], "did you mean 'fedavg'"),
    "an unknown option": (["run", "-m", "fedprox(nu=1)", "-t", "photo"], "did you mean 'mu'"),
    "an unknown key": (["run", "--set", "train.ronds=3"], "did you mean 'rounds'"),
    "a missing folder": (["run", "-t", "a", "--set", "data=folder(root=/no/such)"], "/no/such: no such folder"),
    "no target": (["run"], "choose the unseen domain among"),
    "an unknown target": (["run", "-t", "fresco"], "no domain 'fresco'"),
    "zero rounds": (["run", "-t", "photo", "--set", "train.rounds=0"], "train.rounds = 0 is not valid"),
    "a missing file": (["bench", "none.toml"], "cannot read none.toml"),
    "an unknown method in a bench": (["bench", "--set", "bench.methods=['fedsbb']"], "did you mean 'fedsb'"),
    "an unknown device": (["run", "-t", "photo", "--device", "abacus"], "try the device cpu"),
    "an unknown group": (["list", "shoes"], "nothing to list under 'shoes'"),
    "an unknown format": (["report", ".", "--format", "pdf"], "format 'pdf' is not known"),
    "results that are not there": (["report", "runs"], "cannot read runs"),
    "a plugin that is not there": (["run", "-t", "photo", "--set", "plugins=['nosuch']"], "nosuch cannot be loaded"),
    "a picture of no kind": (
        ["data", "show", "styles(share=0.02)", "--out", "x.xyz"],
        "give --out a file name that ends in .png",
    ),
    "a network of no width": (["run", "-t", "photo", "--set", "network=convnet(width=0)"], "width=0 is not valid"),
    "a budget of nothing": (["run", "-t", "photo", "-m", "fedsb(budget=0)"], "is not valid"),
    "a missing plugin": (["run", "-t", "photo", "--set", "plugins=['no.py']"], "no.py is not a file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(case, call, tmp_path, monkeypatch):
    words, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words)
    *progress, last = err.splitlines()
    assert code == 2 and message in last and last.startswith("error: ")
    assert all(line.startswith("drawing") for line in progress)
    assert out == "" and not list(tmp_path.rglob("*.jsonl"))


def test_one_domain_is_told(call, tmp_path):
    code, _, err = call("run", "-t", "a", "--set", folder(tmp_path, {"a": ("x", "y")}))
    decoding, *told = err.splitlines()
    assert code == 2 and decoding.startswith("decoding a: ") and len(told) == 1 and "1 domain found (a)" in told[0]


def test_a_domain_without_a_class_is_told(call, tmp_path):
    code, _, err = call("run", "-t", "a", "--set", folder(tmp_path, {"a": ("x", "y"), "b": ("x",)}))
    assert code == 2 and "no image of class y" in err and err.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that cannot be written even by root")
def test_a_read_only_output_folder_is_told(call):
    code, _, err = call("run", "-t", "photo", *SMALL, "--out", "/proc/fedbeyond")
    assert code == 2 and "cannot write /proc/fedbeyond" in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_and_nothing_is_lost(tmp_path):
    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # bytes a file may have: too few for a checkpoint

    words = [sys.executable, "-m", "fedbeyond", "run", "-t", "photo", *SMALL, "--out", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}  # writes files, too
    ended = subprocess.run(words, preexec_fn=little_room, capture_output=True, text=True, check=False, env=env)
    assert ended.returncode == 2 and ended.stderr.count("error: ") == 1
    assert "File too large; free disk space or choose another out folder" in ended.stderr.splitlines()[-1]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_a_domain_may_be_called_1(call, tmp_path):
    words = ["--set", folder(tmp_path / "data", {"1": ("x", "y"), "2": ("x", "y"), "none": ("x", "y")})]
    words += ["--set", "train.rounds=1", "--set", "network=convnet(width=2)", "--out", tmp_path / "runs"]
    for target in ("1", "none"):
        code, out, err = call("run", "-t", target, *words)
        assert code == 0 and f"fedavg, {target} unseen" in out, err


def test_classes_can_be_named_in_a_spelling(call, tmp_path):
    data = folder(tmp_path / "o'brien, x", {"a": ("x", "y", "z"), "b": ("x", "y")})
    data = f"data=folder(root=\"{tmp_path}/o'brien, x\", size=8, classes=['x', 'y'])"
    code, out, _ = call("run", "-t", "a", "--set", data, "--set", "train.rounds=1", "--out", tmp_path / "runs")
    assert code == 0 and "a unseen" in out


def test_ctrl_c_says_how_to_go_on(call, tmp_path, monkeypatch):
    from fedbeyond.experiment import runner

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "describe_round", interrupted)
    code, _, err = call("run", "-t", "photo", *SMALL, "--out", tmp_path)
    assert code == 130 and "give the same command again to resume" in err


def test_sigterm_ends_a_command_as_ctrl_c_does(call, tmp_path, monkeypatch):
    from fedbeyond.experiment import runner

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(runner, "describe_round", lambda *args: signal.raise_signal(signal.SIGTERM))
    code, _, err = call("run", "-t", "photo", *SMALL, "--out", tmp_path)
    assert code == 143 and "give the same command again to resume" in err
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_may_not_be_read_is_a_line_and_no_traceback(monkeypatch, capsys):
    def refused(**options):
        raise PermissionError(13, "Permission denied", "scans/a")

    monkeypatch.setattr(main, "app", refused)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2 and "error: scans/a: no permission" in capsys.readouterr().err
