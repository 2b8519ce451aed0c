"""What a site's files, tables and folders are called stays at the site, also when something goes wrong there."""

import ast
import re

import numpy as np
import pytest
from flwr.app import Error
from PIL import Image

from fedbeyond import NUMERICS, WIRE
from fedbeyond.errors import ConfigError, DataError, FederationError, PolicyError
from fedbeyond.experiment import runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment, failures
from fedbeyond.flower.messages import ASK, ENROL, EVALUATE, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_config import SiteConfig
from support.grids import Nodes
from support.modes import mode, umask
from support.paths import SOURCE

flower.PAUSE = 0.0
SITES, PATIENT = ("east", "north", "photo"), "Jane_Doe"
ENTRY = r"see its errors\.log, entry ([0-9a-f]{8})"


@pytest.fixture
def config():
    train = Train(rounds=1, batch_size=4, quorum=2, validation=0.3)
    return Config(method="fedavg", target="west", data="styles", network="mlp(hidden=[4])", train=train)


def write_table(path, age="60"):
    rows = [f"{40 + place},{place % 7},{'yes' if place % 3 else 'no'}" for place in range(30)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["age,dose,ill", *rows, f"{age},3,yes"]) + "\n")


def federation(folder, answer=None, data=None):
    """Three sites with a table each; `data` of photo may be another."""
    app, grid = flower.client_app(answer), {}
    for place, site in enumerate(SITES):
        write_table(folder / "data" / site / f"{site}.csv")
        own = {"site": site, "data": f"table(path='{folder}/data/{site}/*.csv', label='ill')"}
        own |= {"data": data} if data and site == "photo" else {}
        grid[place] = (app, own | {"folder": str(folder / site), "secret": ""})
    return Nodes(grid)


def run(config, grid, home):
    transport = flower.FlowerTransport(grid, 5.0)
    return list(runner.run(enrolment.prepare(config, transport, SITES, home=home), home))


def is_in(text, folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and text.encode() in path.read_bytes()]


def named_file(root):
    """An image that cannot be read, in a file that is called like a patient."""
    for name in ("cat", "dog"):
        (root / "photo" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(root / "photo" / name / "0.png")
    (root / "photo" / "dog" / f"{PATIENT}.png").write_bytes(b"torn")
    return f"folder(root='{root}')"


def named_folder(root):
    """A folder of a patient that does not exist."""
    return f"folder(root='{root / PATIENT}')"


def named_cell(root):
    """A table with a name in a column of numbers."""
    write_table(root / "photo.csv", PATIENT)
    return f"table(path='{root}/*.csv', label='ill')"


def named_option(root):
    """Settings of the site that cannot be understood."""
    return f"folder({PATIENT}='{root}')"


@pytest.mark.parametrize("data", [named_file, named_folder, named_cell, named_option], ids=lambda data: data.__name__)
def test_a_patients_name_reaches_neither_the_reply_nor_the_server(config, data, tmp_path, capsys):
    grid = federation(tmp_path / "sites", data=data(tmp_path / "other"))
    with umask(0), pytest.raises(FederationError, match=rf"photo: \w+Error at the site: {ENTRY}") as raised:
        run(config, grid, tmp_path / "run")
    left = b"".join(grid.replied).decode(errors="replace") + str(raised.value) + "".join(capsys.readouterr())
    assert PATIENT not in left and str(tmp_path) not in left
    log = tmp_path / "sites" / "photo" / failures.LOG
    assert is_in(PATIENT, tmp_path / "sites") == [log] and mode(log) == 0o600


def test_a_patients_name_is_in_no_result_line(config, tmp_path):
    """A cell is changed after the run began."""

    def answer(context, message):
        if message.subject == ASK:
            write_table(tmp_path / "sites" / "data" / "photo" / "photo.csv", PATIENT)
        return flower.at_site(context, message)

    grid = federation(tmp_path / "sites", answer)
    (line,) = run(config, grid, tmp_path / "run")
    reasons = {entry["request"]: entry["reason"] for entry in line["rejected"] if entry["site"] == "photo"}
    assert reasons.keys() == {"train", "evaluate"}
    assert all(re.fullmatch(rf"DataError at the site: {ENTRY}", reason) for reason in reasons.values())
    assert PATIENT.encode() not in b"".join(grid.replied) and not is_in(PATIENT, tmp_path / "run")
    text = (tmp_path / "sites" / "photo" / failures.LOG).read_text()
    for reason in reasons.values():
        entry = re.search(ENTRY, reason)[1]
        (told,) = re.findall(rf"^\S+ entry {entry}\n((?:  .*\n)+)", text, re.M)
        assert PATIENT in told and "Traceback" in told
        assert f'"sha256": "{entry}' in (tmp_path / "sites" / "photo" / "audit.jsonl").read_text()


@pytest.mark.parametrize("subject", [ENROL, ASK, EVALUATE])
def test_what_raises_around_our_client_is_not_repeated_either(config, subject, tmp_path):
    def answer(context, message):
        if message.subject == subject and context.node_config["site"] == "photo":
            raise RuntimeError(f"/data/{PATIENT}.png")
        return flower.at_site(context, message)

    grid = federation(tmp_path / "sites", answer)
    grid.names = dict(enumerate(SITES))
    try:
        told = str(run(config, grid, tmp_path / "run"))
    except FederationError as error:
        told = str(error)
    assert re.search(rf"RuntimeError at the site: {ENTRY}", told) and PATIENT not in told
    assert PATIENT.encode() not in b"".join(grid.replied)
    assert PATIENT in (tmp_path / "sites" / "photo" / failures.LOG).read_text()


def test_the_text_of_flowers_own_errors_is_not_repeated(config, tmp_path):
    """Flower sends the text of an exception outside our client: the server shows the meaning of its code."""
    grid = federation(tmp_path / "sites")
    good = grid.apps[2][0]

    def app(message, context):
        if message.metadata.message_type != flower.TYPES[ASK]:
            return good(message, context)
        return flower.FlowerMessage(Error(2, f"<class 'OSError'>:<'/home/{PATIENT}'>"), reply_to=message)

    grid.apps[2] = (app, grid.apps[2][1])
    (line,) = run(config, grid, tmp_path / "run")
    reason = {"site": "photo", "request": "train", "reason": "Flower reports: the app failed at the site (error 2)"}
    assert line["rejected"] == [reason] and not is_in(PATIENT, tmp_path / "run")


def test_only_two_classes_of_error_leave_with_their_text(tmp_path):
    class Derived(PolicyError):
        """A class that somebody may add later."""

    for error in (PolicyError(PATIENT), FederationError(PATIENT)):
        assert PATIENT in failures.failure_message(error, tmp_path, None).text
    for error in (ConfigError(PATIENT), DataError(PATIENT), OSError(PATIENT), KeyError(PATIENT), Derived(PATIENT)):
        assert PATIENT not in failures.failure_message(error, tmp_path, None).text
    assert (tmp_path / failures.LOG).read_text().count(f"Error: {PATIENT}") >= 4


SERVER = {"app.py", "enrolment.py", "remote.py"}  # of the server alone; at a site, app.py only calls the others
AT_SITES = [SOURCE / name for name in ("client.py", "site.py", "engine/reestimation.py")]
AT_SITES += sorted(path for path in (SOURCE / "flower").glob("*.py") if path.name not in SERVER)
KNOWN = {  # to the server: what it sent, the site's name, what the policy decides, and what follows from these
    *("config", "method", "notes", "message", "wanted", "accepted", "request", "content", "name", "key", "own"),
    *("__version__", "node.name", "node.facts", "number", "site.name", "self", "forbidden", "allowed", "rounds"),
    *("replies", "spent", "reason", "str(error)", "policy", "train", "sources"),
    *("len(models)", "len(names)", "entry.round", "entry.kind", "run", "same", "plain", "when", "sum(noises.values())"),
    *("most", "count", "least", "part", "site_config.site"),  # `count`: of a network's parameters
    *("fault", "size", "REPEATED", "unknown", "len(scored)"),  # of the server's model, of its message
    *("named", "noted.name", "MAX_STORED", "FOLDER", "remedy", "copies"),  # of a frozen part, and copies of images
}


def names_in(text):
    """What the texts of errors that leave are made of."""
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("FederationError", "PolicyError"):
            for part in call.args:
                values = part.values if isinstance(part, ast.JoinedStr) else [part]
                yield from (ast.unparse(getattr(value, "value", value)) for value in values if not is_constant(value))


def is_constant(value):
    return isinstance(value, ast.Constant)


def is_known(name):
    return any(re.match(rf"(', '\.join\()?{re.escape(known)}\b|{re.escape(known)}$", name) for known in KNOWN)


@pytest.mark.parametrize("module", AT_SITES, ids=lambda path: path.stem)
def test_the_texts_that_leave_are_made_of_what_the_server_may_know(module):
    assert [name for name in names_in(module.read_text()) if not is_known(name)] == []


def test_one_text_alone_repeats_another_error():
    """That of the server's configuration, which is read before anything of the site is."""
    repeated = [path.name for path in AT_SITES for name in names_in(path.read_text()) if name == "str(error)"]
    assert repeated == ["node.py"]


def test_a_text_with_a_path_or_a_count_would_be_noticed():
    text = 'raise PolicyError(f"{path}: {len(images)} images, {node.folder}, {site.data}")'
    assert [name for name in names_in(text) if not is_known(name)] == [
        "path",
        "len(images)",
        "node.folder",
        "site.data",
    ]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"network": "mlp(width=4)"}, "'mlp' has no option 'width'"), ({"method": "fedavgg"}, "did you mean 'fedavg'")],
)
def test_what_is_wrong_with_the_servers_own_words_is_told(config, wrong, reason, tmp_path):
    machine = SiteConfig.parse(federation(tmp_path / "sites").apps[2][1])
    notes = {"config": enrolment.shared_config(config) | wrong, "sources": 3, "run": "r"}
    answer = respond(machine, Message(ENROL, notes | {"wire": WIRE, "numerics": NUMERICS}))
    assert answer.notes["reason"].startswith("FederationError: ") and reason in answer.notes["reason"]


def test_a_server_cannot_forge_entries_of_a_sites_log(config, tmp_path):
    machine = SiteConfig.parse(federation(tmp_path / "sites").apps[2][1])
    notes = {"config": {"method": "x\n2026-01-01T00:00:00 entry 00000000\n  nothing happened\x1b[2J"}, "sources": 3}
    respond(machine, Message(ENROL, notes | {"run": "r", "wire": WIRE, "numerics": NUMERICS}))
    text = (machine.folder / failures.LOG).read_text()
    assert len(re.findall(r"^\S+ entry ", text, re.M)) == 1 and "\x1b" not in text


def test_an_error_is_printed_where_no_log_can_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "state", None):
        failures.failure_message(DataError(PATIENT), folder, None)
        assert PATIENT in capsys.readouterr().err
