"""Mistakes that users make: each ends with one line that says what was given and what to do, and loses nothing."""

import hashlib
import importlib
import shlex
import signal
import sys

import pytest

from fedbeyond.cli import main
from fedbeyond.experiment import build, registry
from support.bad_inputs import write_all

STYLES = (
    "--set 'data=styles(share=0.05)' --set 'network=convnet(width=2)' --set train.rounds=1 --set train.batch_size=8"
)
RUN = f"run {STYLES}"  # words after it come later, and so override what it sets
FOLDER = "run -t a --set 'network=convnet(width=2)' --set train.rounds=1 --set 'data=folder(size=8, root={root}/%s)'"
TABLE = (
    "run -t hA --set network=mlp --set train.rounds=1 --set 'data=table(label=label, site=site, path={root}/tables/%s)'"
)
SKETCH = f"{RUN} -t sketch"

METHODS = {
    "fedproxx": "did you mean 'fedprox'?",
    "FedAvg": "did you mean 'fedavg'?",
    "": "cannot read '' in ''",
    "+": "cannot read '' in '+'",
    "fedavg+": "cannot read '' in 'fedavg+'",
    "fedavg+gaa": "wrapper 'gaa' is not known; did you mean 'ga'?",
    "ga": "'ga' is a wrapper and needs a method before it; write fedavg+ga",
    "fedavg+fedprox": "'fedprox' is a method, not a wrapper",
    "fedavg+ga+ga": "ga sets the aggregation weights, but this method or a wrapper of it does that itself",
    "erm+ga": "pools the data of all sites in one place: remove ga",
    "harmofl+am": "harmofl",
    "fedavg fedprox": "write it as name, name(key=value) or name+name",
    "../../etc": "write it as name, name(key=value) or name+name",
    "fedprox(mu)": "write options as key=value",
    "fedprox(mu=1": "cannot read 'fedprox(mu=1'",
    "fedprox(mu=)": "mu='' is not valid: Input should be a valid number",
    "fedprox(mu=abc)": "mu='abc' is not valid: Input should be a valid number",
    "fedprox(mu=-5)": "fedprox: mu=-5 is not valid: Input should be greater than or equal to 0",
    "fedprox(mu=nan)": "fedprox: mu=nan is not valid: Input should be a finite number",
    "fedprox(mu=inf)": "fedprox: mu=inf is not valid: Input should be a finite number",
    "fedprox(mu=1e400)": "is not valid: Input should be a finite number",
    "fedprox(mu=1, mu=2)": "mu is given twice in 'fedprox(mu=1, mu=2)'",
    "fedprox(mo=1)": "'fedprox' has no option 'mo'; did you mean 'mu'?",
    "fedavg+ga(step=-1)": "ga: step=-1 is not valid",
    "fedavg+ga(stp=1)": "'ga' has no option 'stp'; did you mean 'step'?",
    "fedavg+dp(noise=-1)": "dp: noise=-1 is not valid",
    "fedavg+dp+ga": "put dp last",
    "fedsb(smoothing=2)": "smoothing=2 is not valid",
    "fedsb:papr": "'fedsb' has no preset 'papr'; it has default, paper, official",
    "fedsb:": "cannot read 'fedsb:'",
    "fccl": "needs unlabelled images that every site may use",
}
TARGETS = {
    "": "no target given; choose the unseen domain among cartoon, painting, photo, sketch",
    "sketchh": "no domain 'sketchh'; choose the unseen domain among",
    "Sketch": "choose the unseen domain among cartoon, painting, photo, sketch (as in target = sketch)",
    "photo,sketch": "no domain 'photo,sketch'",
    "photo+": "no domain ''",
    "photo+photo": "names a domain twice",
    "photo+cartoon+sketch+painting": "leaves no domain to train on",
    "5": "no domain '5'",
}
SETTINGS = {
    "train.rounds": "--set takes key=value, as in --set train.rounds=5; got 'train.rounds'",
    "": "--set takes key=value",
    "=3": "is not known",
    "train=3": "train = 3 is not valid",
    "train.ronds=3": "train.ronds is not known; did you mean 'rounds'?",
    "method.mo=1": "'fedavg' has no option 'mo'",
    "method.ga.step=1": "'fedavg' has no part called 'ga'",
    "target.foo=1": "target has no options; write --set target=VALUE",
    "target=photo": "target is given twice, by --target sketch and by --set target=photo",
    "bench.seeds=[1]": "has no effect on a single run",
    "foo.bar=1": "foo is not known",
    "plugins=nosuch.py": "plugin nosuch.py is not a file",
    "plugins=nosuchmodule": "No module named 'nosuchmodule'",
    "train.rounds=0": "train.rounds = 0 is not valid: Input should be greater than 0",
    "train.rounds=-1": "train.rounds = -1 is not valid",
    "train.rounds=1.5": "got a number with a fractional part",
    "train.rounds=nan": "train.rounds = nan is not valid",
    "train.rounds=many": "train.rounds = 'many' is not valid",
    "train.epochs=0": "train.epochs = 0 is not valid",
    "train.batch_size=-3": "train.batch_size = -3 is not valid",
    "train.validation=0": "give a share between 0 and 1, or 'official'",
    "train.validation=nan": "give a share between 0 and 1",
    "train.test=0.95": "validation and test take 105% of the images; leave some to train on",
    "train.clients_per_domain=10000": "too few for 10000 clients",
    "train.clients_per_round=0": "train.clients_per_round = 0 is not valid",
    "train.quorum=100": "only 3 sites take part in a round; lower train.quorum",
    "train.label_skew=0.5": "set clients_per_domain as well",
    "train.mixing=2": "train.mixing = 2 is not valid",
    "train.schedule=cosin": "schedule 'cosin' is not known; did you mean 'cosine'?",
    "train.schedule=step(at=-1)": "step: at=-1 is not valid",
    "train.schedule=cosine(end=-1)": "cosine: end=-1 is not valid",
    "train.batchnorm=none": "Input should be 'average', 'reestimate', 'local' or 'frozen'",
    "train.precision=bfloat16": "needs a GPU (CUDA)",
    "train.transform=flipp": "transform 'flipp' is not known",
    "train.split=nowhere.json": "nowhere.json",
    "train.select=oracle": "Input should be 'source-validation'",
    "seed=1e99": "seed = 1e+99 is not valid",
    "seed=one": "seed = 'one' is not valid",
    "optimizer=sgdd": "optimizer 'sgdd' is not known; did you mean 'sgd'?",
    "optimizer.lr=-1": "sgd: lr=-1 is not valid: Input should be greater than or equal to 0",
    "optimizer.lr=nan": "sgd: lr=nan is not valid: Input should be a finite number",
    "optimizer.lr=1e30": "did its training diverge? a smaller lr may help",
    "optimizer.momentum=2": "sgd: momentum=2 is not valid: Input should be less than 1",
    "optimizer.weight_decay=-1": "sgd: weight_decay=-1 is not valid",
    "optimizer=adam(betas=1)": "'adam' has no option 'betas'",
    "optimizer=sam(rho=-1)": "sam: rho=-1 is not valid",
    "network=convnt": "network 'convnt' is not known; did you mean 'convnet'?",
    "bench.methods=x": "has no effect on a single run",
    "network=convnet(width=0)": "convnet: width=0 is not valid",
    "network=convnet(norm=layer)": "Input should be 'batch' or 'group'",
    "network=convnet+mlp": "only a method and wrappers can be joined with '+'",
    "network=mlp": "mlp is for tables, these data are images of 3 x 32 x 32; use convnet",
    "network=resnet18(weights={root}/weights/text.safetensors)": "cannot be read (SafetensorError)",
    "network=resnet18(weights={root}/weights/empty.safetensors)": "give a file that holds only tensors",
    "network=resnet18(weights={root}/weights/junk.pth)": "give a file that holds only tensors",
    "network=resnet18(weights={root}/weights/other.safetensors)": "the file lacks bn1.bias",
    "network=resnet18(weights={root}/weights/missing.pth)": "no such file; give a torchvision .pth file",
    "data=stiles": "dataset 'stiles' is not known; did you mean 'styles'?",
    "data=styles(share=0)": "share in (0, 1]",
    "data=styles(share=nan)": "share=nan is not valid",
    "data=styles(size=100000)": "size must be 16 to 256",
    "data=folder": "folder needs a path",
    "data={root}/good": "a path is an option, as in folder(root=",
    "data=pacs(root={root}/missing)": "no such folder; expected",
}
FOLDERS = {
    "missing": "no such folder; give a folder laid out as domain/class/image",
    "file": "no such folder",
    "nothing": "it has neither folders nor .npz files; expected domain/class/image",
    "bare": "3 images directly in it, in no folder",
    "flat": "3 images directly in it, in no class folder; expected a/class/image",
    "one-class": "has one class (x); a classifier needs at least two",
    "one-domain": "1 domain found (a); one to leave out and one to train on are needed",
    "other-class": "no image of class Z, which other domains have",
    "truncated": "a/x/0.png: cannot be read as an image",
    "empty-file": "a/x/0.png: cannot be read as an image",
    "text": "a/x/0.png: cannot be read as an image",
    "cut-jpeg": "a/x/9.jpg: cannot be read as an image (truncated); remove or replace it",
    "bomb": "exceeds limit",
    "deep": "a/x/9.png: cannot be read as an image (more than 8 bits a pixel",
    "dead-link": "a/x/dead.png: cannot be read (No such file or directory)",
    "arrays": "it has .npz files and no folders; write data as npz(root=",
    "tables": "it has .csv files and no folders; write data as table(path='",
    "good, classes=[x, q]": "no domain has an image of class q",
}
TABLES = {
    "missing.csv": "no such file; give a CSV file",
    "bad-cell.csv": "column 'age' has numbers, and in 1 row of 60 something else: '6o' (line 2)",
    "infinite.csv": "something else: 'inf' (line 2); fix these values",
    "comma.csv": "a decimal has a point: 52.5, not 52,5",
    "case.csv": "differ only in upper and lower case or in blanks: 'ILL' in 1 row (line 2), 'ill' in 31 rows",
    "regression.csv": "a quantity and not classes",
    "no-label.csv": "1 row without a value in the label column 'label': line 2",
    "ids.csv": "like an identifier or free text: 'p0000' (line 2)",
    "short.csv": "line 2: 3 values for 4 columns; fix that line",
    "long.csv": "line 2: 5 values for 4 columns",
    "empty.csv": "no rows; expected a CSV file with a header",
    "zero.csv": "no rows",
    "binary.csv": "give a CSV file in UTF-8",
    "twice.csv": "more than one column has the name 'age'",
    "one-site.csv": "1 domain found (hA)",
    "one-class.csv": "the label needs at least two classes",
    "good.csv, drop=[agee]": "no column 'agee'; its columns are site, age, sort, label",
}
COMMANDS = {
    f"run {STYLES}": "no target given",
    f"{TABLE % 'good.csv'} --set network=convnet": "these data are rows of 2 features; use mlp",
    f"{TABLE % 'good.csv'} -m fedavg+rc": "rc needs images",
    f"{SKETCH} --set plugins={{root}}/plugins/missing.py": "missing.py is not a file",
    f"{SKETCH} --set plugins={{root}}/plugins/syntax.py": "syntax.py, line 1: SyntaxError: invalid syntax",
    f"{SKETCH} --set plugins={{root}}/plugins/raises.py": "raises.py, line 2: RuntimeError: boom",
    f"{SKETCH} --set plugins={{root}}/plugins/imports.py": "No module named 'nosuchpackage'",
    f"{SKETCH} --set plugins={{root}}/plugins/none.py -m mine": "mine",
    f"{SKETCH} --set plugins={{root}}/plugins/bug.py -m buggy": "bug.py, line 9: ZeroDivisionError: division by zero",
    f"{SKETCH} --out {'x' * 300}": "has 300 bytes, and a file system allows 255",
    f"{SKETCH} -m {'x' * 300}": "has 300 bytes, and a file system allows 255",
    f"{SKETCH} --device gpu": "device 'gpu' cannot be used",
    f"{SKETCH} --device cuda:99": "try the device cpu",
    f"{SKETCH} --seed x": "is not a valid int",
    f"{SKETCH} --workers 0": "is not in the range x>=1",
    f"{SKETCH} --out {{root}}/file": "choose another out folder",
    f"{SKETCH} --out /proc/x": "choose another out folder",
    f"{SKETCH} --nosuch": "No such option: --nosuch",
    f"{SKETCH} --rounds 3": "No such option: --rounds; it is a setting: --set train.rounds=...",
    f"{SKETCH} --lr 3": "it is a setting: --set optimizer.lr=...",
    "bench --seeds 0": "it is a setting: --set bench.seeds=...",
    "report {root}/nothing --rounds 3": "No such option: --rounds",
    f"bench {STYLES} --set 'bench.methods=[fedavg, fedproxx]'": "did you mean 'fedprox'?",
    f"bench {STYLES} --set bench.targets=sketchh": "no domain 'sketchh'",
    f"bench {STYLES} --set bench.seeds=x": "bench.seeds.0 = 'x' is not valid",
    f"bench {STYLES} --set bench.figures=camm": "no such figure; did you mean 'cam'?",
    f"bench {STYLES} --set bench.methods=fedprox --set method.mu=1": "bench.methods lists the methods to compare",
    f"bench {STYLES} --jobs 0": "is not in the range x>=1",
    "bench {root}/toml/bad.toml": "is not TOML",
    "bench {root}/toml/none.toml": "No such file or directory; give the path of a TOML file",
    "bench {root}/toml/unknown.toml": "metod is not known; did you mean 'method'?",
    "bench {root}/toml/type.toml": "train.rounds = 'x' is not valid",
    "bench {root}/toml/latin.toml": "is not TOML: 'utf-8' codec can't decode",
    "bench {root}/good": "Is a directory; give the path of a TOML file",
    "check {root}/toml/bad.toml": "is not TOML",
    "report {root}/nothing": "holds no results.jsonl; give a folder that 'fedbeyond run' or 'bench' wrote",
    "report {root}/missing": "No such file or directory",
    "report {root}/file": "is not JSON; is it a results file of fedbeyond?",
    "report {root}/nothing --format pdff": "format 'pdff' is not known; known: csv, html, latex, markdown, text",
    "export {root}/nothing": "is not a run: it has no config.json",
    "predict {root}/nothing {root}/good": "holds no model.json; give a folder that 'fedbeyond export' wrote",
    "data check {root}/missing": "no such",
    "data show nosuch": "dataset 'nosuch' is not known",
    "data info nosuch": "dataset 'nosuch' is not known",
    "list nosuch": "nothing to list under 'nosuch'",
    "list methods --format x": "--format x is not known; choose text or markdown",
    "figure camm {root}/nothing": "figure 'camm' is not known; did you mean 'cam'?",
    "figure cam {root}/missing": "has no finished run",
    "nosuch": "No such command 'nosuch'",
}
TINY = "--set 'network=convnet(width=2)' --set train.batch_size=8 --set train.rounds=2 --device cpu"
TWO_ROUNDS = f"run -t a --out {{out}} {TINY} --set 'data=folder(size=8, root={{root}}/good)'"
TWO_RUNS = f"bench --out {{out}} {STYLES} {TINY} --jobs 1 --workers 1 --set 'bench.targets=[sketch, photo]'"
MODEL = "export {done}/run/fedavg/a/seed-0 --out {out}"
INTERRUPTS = (  # the command, the function in which it is stopped, in which of its calls
    (TWO_ROUNDS, "experiment.config:Config.digest", 1),
    (TWO_ROUNDS, "data.storage.cache:decoded", 9),  # reading data
    (TWO_ROUNDS, "engine.simulator:answer", 2),  # round 1
    (TWO_ROUNDS, "evaluation.metrics:classification_metrics", 2),
    (TWO_ROUNDS, "experiment.results:append", 1),  # before the line of round 1
    (TWO_ROUNDS, "experiment.results:append", 2),  # between its line and its times
    (TWO_ROUNDS, "experiment.checkpoint:content", 1),  # in the thread that writes checkpoints
    (TWO_ROUNDS, "experiment.checkpoint:content", 4),
    (TWO_ROUNDS, "experiment.runner:participants", 2),  # between two rounds
    (TWO_ROUNDS, "engine.simulator:answer", 4),  # round 2
    (TWO_ROUNDS, "experiment.bench:selection_score", 1),  # printing the scores
    (TWO_RUNS, "experiment.bench:write_plan", 1),
    (TWO_RUNS, "experiment.runner:participants", 2),  # the first run
    (TWO_RUNS, "experiment.runner:participants", 3),  # the second run
    (TWO_RUNS, "report.bench:draw_figures", 1),
    (TWO_RUNS, "report.page:page", 1),
    ("report {done}/bench --format html --out {out}/page.html --figures {out}/figures", "report.page:page", 1),
    ("report {done}/bench --format html --out {out}/page.html --figures {out}/figures", "_io:os.fsync", 1),
    ("report {done}/bench --format html --out {out}/page.html --figures {out}/figures", "_io:os.fsync", 4),
    (MODEL, "export.export:temperature", 1),
    (MODEL, "_io:os.fsync", 2),  # the card, after the numbers
    ("predict {done}/model {root}/good --out {out}/predictions.csv", "export.predict:decoded", 3),
    ("predict {done}/model {root}/good --out {out}/predictions.csv", "_io:os.fsync", 1),
    ("data check {root}/good --out {out}/data.png", "data.check.scan:decode_error", 3),
    ("data check {root}/good --out {out}/data.png", "_io:os.fsync", 1),
    ("data show --out {out}/data.png 'folder(root={root}/good, size=8)'", "data.check.picture:np.repeat", 3),
    (f"check {STYLES}", "experiment.plan:describe_methods", 1),
)
FINISHED = (0, 1)  # 1: data check has findings
CASES = [
    *((f"{SKETCH} -m {shlex.quote(method)}", phrase) for method, phrase in METHODS.items()),
    *((f"{RUN} -t {shlex.quote(target)}", phrase) for target, phrase in TARGETS.items()),
    *((f"{SKETCH} --set {shlex.quote(setting)}", phrase) for setting, phrase in SETTINGS.items()),
    *((FOLDER % name, phrase) for name, phrase in FOLDERS.items()),
    *((TABLE % name, phrase) for name, phrase in TABLES.items()),
    *COMMANDS.items(),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with all inputs."""
    written = tmp_path_factory.mktemp("inputs")
    write_all(written)
    return written


def fingerprint(root):
    """Return the contents of all files below a folder."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def short(command):
    return command.replace(STYLES, "...")[-70:]


@pytest.mark.parametrize(("command", "phrase"), CASES, ids=[short(command) for command, _ in CASES])
def test_a_mistake_ends_with_one_line_and_nothing_is_lost(command, phrase, root, tmp_path, capsys, monkeypatch):
    words = [word.replace("{root}", str(root)) for word in shlex.split(command)]
    if words[0] in ("run", "bench") and "--out" not in words:
        words += ["--out", str(tmp_path / "runs")]
    before = fingerprint(root)
    monkeypatch.setattr(sys, "argv", ["fedbeyond", *words])
    monkeypatch.setattr(registry, "REGISTRY", {group: dict(table) for group, table in registry.REGISTRY.items()})
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as end:
        main.main()
    printed = capsys.readouterr()
    message = " ".join(printed.err.replace("│", " ").split())
    assert end.value.code == 2 and phrase in message, printed.err
    assert message.count("error: ") + message.count("Error ─") == 1 and "Traceback" not in printed.err + printed.out
    assert fingerprint(root) == before
    assert not list((tmp_path / "runs").rglob("results.jsonl"))


@pytest.fixture(scope="module")
def done(root, tmp_path_factory):
    """What commands leave that nobody stopped: a run, a bench, a model and so on, by the first word of the command."""
    folder = tmp_path_factory.mktemp("done")
    places = {"root": root, "done": folder}
    with pytest.MonkeyPatch.context() as patch:
        for command in dict.fromkeys(command for command, *_ in INTERRUPTS):
            out = folder / name_of(command)
            out.mkdir()
            assert ended(patch, command, places | {"out": out}) in FINISHED
    return folder


def name_of(command):
    """Return the folder of what an uninterrupted command leaves."""
    return {"export": "model", "data": "-".join(command.split()[:2])}.get(command.split()[0], command.split()[0])


def ended(patch, command, places):
    """Run a command in this process and return its exit code."""
    patch.setattr(sys, "argv", ["fedbeyond", *(word.format(**places) for word in shlex.split(command))])
    with pytest.raises(SystemExit) as end:
        main.main()
    return end.value.code or 0


def stopping(number, called, at):
    """Return a function that sends this process a signal in its call with the number `at`."""
    calls = []

    def stopped(*args, **options):
        calls.append(args)
        if len(calls) == at:
            signal.raise_signal(number)
        return called(*args, **options)

    return stopped


def outputs(folder):
    """Return the contents of files that two uninterrupted commands write alike; fail for a file that is not whole."""
    found = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not [path for path in found if path.suffix == ".partial"]
    return {
        path: content
        for path, content in found.items()
        if path.name not in ("times.jsonl", "machine.json", "report.html")
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize(
    ("command", "place", "at"),
    INTERRUPTS,
    ids=[f"{command.split()[0]}, {place}, {at}" for command, place, at in INTERRUPTS],
)
def test_a_stopped_command_loses_nothing(command, place, at, number, root, done, tmp_path, capsys, monkeypatch):
    places = {"root": root, "done": done, "out": tmp_path / "out"}
    places["out"].mkdir()
    before, reference = fingerprint(root), outputs(done / name_of(command))
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "cache"))
    build._dataset.cache_clear()
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # though tests run in the background
    module, _, attribute = place.partition(":")
    target = importlib.import_module(f"fedbeyond.{module}")
    *owners, name = attribute.split(".")
    for owner in owners:
        target = getattr(target, owner)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stopping(number, getattr(target, name), at))
            code = ended(patch, command, places)
    finally:
        signal.signal(signal.SIGINT, heard)
    printed = capsys.readouterr()
    assert code == 128 + number, printed.err
    assert [line for line in printed.err.splitlines() if line][-1].startswith("stopped; ")
    assert "Traceback" not in printed.err + printed.out
    if command.split()[0] in ("run", "bench"):
        for path, content in outputs(places["out"]).items():
            if path.name == "results.jsonl":
                assert reference[path].startswith(content)
    else:
        assert outputs(places["out"]).items() <= reference.items()
    assert ended(monkeypatch, command, places) in FINISHED
    assert outputs(places["out"]) == reference and fingerprint(root) == before
    assert outputs(done / name_of(command)) == reference


@pytest.mark.parametrize(
    ("path", "spelled"),
    {
        "good": "folder(root=good)",
        "arrays": "npz(root=arrays)",
        "a.npz": "npz(root=.)",
        "good.csv": "table(path=good.csv, site=COLUMN, label=COLUMN)",
    }.items(),
)
def test_a_path_in_place_of_a_dataset_is_spelled_out(path, spelled, root, call, monkeypatch):
    monkeypatch.chdir(root / {"a.npz": "arrays", "good.csv": "tables"}.get(path, "."))
    code, _, err = call("run", "-t", "a", "--set", f"data={path}")
    assert code == 2 and f"{path} is a path, not the name of a dataset; write data as {spelled}" in err


def test_odd_images_are_read(root, tmp_path, capsys, monkeypatch):
    """CMYK, animated, transparent, large and oblong images, and names of all sorts."""
    words = [word.replace("{root}", str(root)) for word in shlex.split(FOLDER % "odd")]
    monkeypatch.setattr(sys, "argv", ["fedbeyond", *words, "--out", str(tmp_path / "runs")])
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as end:
        main.main()
    assert not end.value.code and "a unseen" in capsys.readouterr().out


def test_there_are_more_than_a_hundred_and_twenty_of_them():
    assert len({command for command, _ in CASES}) == len(CASES) > 120 and len(set(INTERRUPTS)) == len(INTERRUPTS) > 20
