"""Groups (patients, cases, slides) at sites: splits are those of the simulator, and names of groups never leave."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

from fedbeyond.data.partition.assignment import build_splits, local_tests
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import run_folder, runner
from fedbeyond.experiment.build import dataset, partition
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment
from fedbeyond.flower.deploy import folder, keys, operations
from fedbeyond.flower.deploy.preflight import preflight
from fedbeyond.flower.messages import ASK, FAILURE, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_config import SiteConfig
from fedbeyond.flower.site_data import count_groups, own_domain, site_splits, split_rows
from support.grids import Nodes

flower.PAUSE = 0.0
SITES, GUEST = ("east", "north", "south"), "west"
ROWS, SECRET = 44, "Quibblex"  # every patient's name begins with it
LABELS = [0] * 20 + [1] * 24
PATIENTS = {  # with rows of both classes; other numbers at every site
    site: [f"{SECRET}{number % 7 if number % 5 else 7 + place}" for number in range(ROWS)]
    for place, site in enumerate((*SITES, GUEST))
}
PATTERN = r"_(\w+)\."


def pictures(site):
    """Images that differ from each other, in the order of class and number."""
    return np.random.default_rng(sorted(PATIENTS).index(site)).integers(0, 256, (ROWS, 8, 8, 3), dtype=np.uint8)


def write_npz(root, sites):
    root.mkdir(parents=True)
    for site in sites:
        np.savez(root / f"{site}.npz", x=pictures(site), y=LABELS, classes=["ill", "well"], who=PATIENTS[site])
    return f"npz(root='{root}', size=8, groups=who)"


def write_parts(root, sites):
    """Each file has three parts, and images of a patient are in several of them."""
    root.mkdir(parents=True)
    for site in sites:
        held = {"classes": ["ill", "well"]}
        for part, rows in zip(("train", "val", "test"), np.array_split(np.arange(ROWS), 3), strict=True):
            held |= {f"x_{part}": pictures(site)[rows], f"y_{part}": np.array(LABELS)[rows]}
            held |= {f"who_{part}": np.array(PATIENTS[site])[rows]}
        np.savez(root / f"{site}.npz", **held)
    return f"npz(root='{root}', size=8, groups=who)"


def write_folder(root, sites):
    for site in sites:
        for number, (pixels, label) in enumerate(zip(pictures(site), LABELS, strict=True)):
            path = root / site / ("ill", "well")[label] / f"{number:02}_{PATIENTS[site][number]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return f"folder(root='{root}', size=8, groups='{PATTERN}')"


def write_folder_and_list(root, sites):
    spelled, lines = write_folder(root / "scans", sites), ["file,group"]
    for path in sorted((root / "scans").rglob("*.png")):
        lines.append(f"{path.relative_to(root / 'scans').as_posix()},{path.stem[3:]}")
    (root / "patients.csv").write_text("\n".join(lines))
    return spelled.replace(PATTERN, str(root / "patients.csv"))


def write_table(root, sites):
    root.mkdir(parents=True)
    for site in sites:
        numbers = pictures(site)[:, 0, 0]
        rows = zip(PATIENTS[site], numbers, LABELS, strict=True)
        lines = [f"{who},{n + 0.5},{a if n % 3 else ''},{b / 7:.3f},{y}" for n, (who, (a, b, _), y) in enumerate(rows)]
        (root / f"{site}.csv").write_text("\n".join(["who,number,a,b,state", *lines]))
    return f"table(path='{root}/*.csv', label=state, groups=who)"


KINDS = {
    "npz": write_npz,
    "npz in parts": write_parts,
    "folder": write_folder,
    "folder with a list": write_folder_and_list,
    "table": write_table,
}


def own_data(folder, kind):
    """What a site's settings name, by site: a copy of its own data and of nobody else's; `mixed`: in several forms."""
    forms = list(KINDS.values())[::2][:2] if kind == "mixed" else [KINDS[kind]]
    return {
        site: forms[place % len(forms)](folder / "own" / site, [site]) for place, site in enumerate((*SITES, GUEST))
    }


def run_config(data, **train):
    network = "mlp(hidden=[4])" if data.startswith("table") else "convnet(width=4)"
    options = {
        "rounds": 2,
        "batch_size": 8,
        "batchnorm": "average",
        "validation": 0.2,
        "test": 0.2,
        "disjoint": "groups",
    }
    return Config(method="fedavg+ga", target=GUEST, data=data, network=network, train=Train(**options | train))


def settings(folder, site, data, **more):
    role = "guest" if site == GUEST else "train"
    return {"site": site, "data": data, "folder": str(folder / "state" / site), "role": role} | more


def federation(folder, data, sent=None, **policies):
    """Nodes that each have their own data; the bytes of every reply are added to `sent`."""

    def answer(context, message):
        reply = flower.at_site(context, message)
        if sent is not None:
            sent.append(reply.text.encode() + reply.content)
        return reply

    app, grid = flower.client_app(answer), {}
    for place, (site, spelled) in enumerate(data.items()):
        more = {}
        if site in policies:
            (folder / f"{site}.toml").write_text(policies[site])
            more = {"policy": str(folder / f"{site}.toml")}
        grid[50 - place] = (app, settings(folder, site, spelled, **more))
    return Nodes(grid)


def play(config, grid, home):
    setup = enrolment.prepare(config, flower.FlowerTransport(grid, 5.0), SITES, (GUEST,), home=home)
    return list(runner.run(setup, home))


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@pytest.mark.parametrize("clients", [1, 2])
def test_the_rows_of_every_split_are_those_of_the_simulator_and_no_group_is_in_two(kind, clients, tmp_path):
    simulated = dataset(KINDS.get(kind, write_npz)(tmp_path / "all", (*SITES, GUEST)))
    data = own_data(tmp_path, kind)
    for seed in range(3):
        config = replace(run_config(data["east"], clients_per_domain=clients), seed=seed)
        parts = partition(config, simulated)
        splits, unseen = build_splits(simulated, parts)
        splits = {name: split | {"local_test": local_tests(simulated, parts)[name]} for name, split in splits.items()}
        found = {site: [] for site in data}
        for name, expected in {**splits, GUEST: {"test": unseen[GUEST]}}.items():
            domain = parts.clients[name].domain if name in splits else GUEST
            site = SiteConfig.parse(settings(tmp_path, name, data[domain], domain=domain))
            domains = own_domain(site)
            for part, (x, y) in site_splits(site, config, domains).items():
                want_x, want_y = expected.pop(part)
                assert torch.equal(x[:], want_x[:]) and torch.equal(y, want_y)
            assert not expected
            rows = split_rows(site, config, domains)
            held = [{PATIENTS[domain][row] for row in some[domain]} for some in rows.values()]
            assert list(count_groups(domains, rows).values()) == list(map(len, held)) and min(map(len, held)) > 0
            found[domain] += held
        for site, held in found.items():
            assert sum(map(len, held)) == len(set.union(*held)) == len(set(PATIENTS[site])) == 8


@pytest.mark.parametrize("kind", ["folder", "npz", "table", "mixed"])
def test_a_run_with_groups_writes_the_files_of_the_simulator_and_names_of_groups_stay(kind, tmp_path, capsys):
    config = run_config(KINDS.get(kind, write_npz)(tmp_path / "all", (*SITES, GUEST)))
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    sent = []
    play(config, federation(tmp_path, own_data(tmp_path, kind), sent), tmp_path / "flower")
    for name in ("results.jsonl", "best.safetensors", "config.json"):
        assert (tmp_path / "simulated" / name).read_bytes() == (tmp_path / "flower" / name).read_bytes(), name
    line = run_folder.lines(tmp_path / "flower")[-1]
    assert line["rejected"] == [] and all("local_test" in line["scores"][site] for site in SITES)
    logs = [path.read_bytes() for site in SITES for path in (tmp_path / "state" / site).glob("audit.jsonl")]
    files = [path.read_bytes() for path in (tmp_path / "flower").rglob("*") if path.is_file()]
    assert len(logs) == len(SITES) and len(sent) > 12
    assert not [text for text in (*sent, *logs, *files) if SECRET.encode() in text]
    assert SECRET not in "".join(capsys.readouterr())


def test_a_site_without_groups_is_named_when_it_enrols_in_a_run_that_keeps_them_together(tmp_path):
    data = own_data(tmp_path, "npz")
    data["north"] = data["north"].replace(", groups=who", "")
    with pytest.raises(
        FederationError,
        match=r"^not all sites enrolled \(north: .*site 'north' names no groups .* = 'groups' keeps them together",
    ):
        play(run_config(data["east"]), federation(tmp_path, data), tmp_path / "run")
    assert not list((tmp_path / "state").rglob("*.safetensors"))


def test_a_guest_needs_no_groups(tmp_path):
    data = own_data(tmp_path, "npz")
    data[GUEST] = data[GUEST].replace(", groups=who", "")
    (*_, line) = play(run_config(data["east"]), federation(tmp_path, data), tmp_path / "run")
    assert line["rejected"] == [] and "test" in line["scores"][GUEST]


def test_a_sites_policy_can_refuse_runs_that_do_not_keep_groups_together(tmp_path):
    """Also a server that enrols the sites as agreed, and later asks for another split."""
    data = own_data(tmp_path, "npz")
    grid = federation(tmp_path, data, east='disjoint = "groups"')
    agreed, other = run_config(data["east"]), run_config(data["east"], disjoint=None)
    assert [line["rejected"] for line in play(agreed, grid, tmp_path / "run")] == [[], []]
    with pytest.raises(
        FederationError, match=r"east: PolicyError: .*in two splits; .* policy requires train.disjoint = 'groups'"
    ):
        play(other, grid, tmp_path / "other")
    asked = next(m for m in map(lambda m: flower.from_records(m.content), grid.heard) if m.subject == ASK)
    notes = asked.notes | {"config": enrolment.shared_config(other), "site": "east"}
    refused = respond(SiteConfig.parse(grid.apps[50][1]), Message(ASK, notes, asked.body))
    assert refused.subject == FAILURE and "train.disjoint = 'groups'" in refused.notes["reason"]


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_server_cannot_choose_splits_of_one_patient_where_the_policy_forbids_it(part, tmp_path):
    """A share of nearly nothing, and all images of some patient are evaluated alone."""
    data = own_data(tmp_path, "npz")
    config = run_config(data["east"], **{part: 1e-6})
    site = SiteConfig.parse(settings(tmp_path, "east", data["east"]))
    counts = count_groups(own_domain(site), split_rows(site, config, own_domain(site)))
    assert counts["val" if part == "validation" else "local_test"] == 1
    with pytest.raises(FederationError, match=r"east: PolicyError: .* split has too few groups .* requires 2 or more"):
        play(config, federation(tmp_path, data, east="min_groups = 2"), tmp_path / "run")
    larger = run_config(data["east"], validation=0.3, test=0.3)
    assert play(larger, federation(tmp_path, data, east="min_groups = 2"), tmp_path / "allowed")
    data["east"] = data["east"].replace(", groups=who", "")
    config = run_config(data["east"], disjoint=None)
    with pytest.raises(FederationError, match=r"east: PolicyError: .* 2 or more groups .*the site's data name none"):
        play(config, federation(tmp_path, data, east="min_groups = 2"), tmp_path / "unnamed")


def test_a_list_of_patients_that_contradicts_itself_names_no_patient_to_the_server(tmp_path):
    data, sent = own_data(tmp_path, "folder with a list"), []
    path = tmp_path / "own" / "east" / "patients.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, f"{lines[1].partition(',')[0]},{SECRET}77"]))
    with pytest.raises(FederationError, match=r"east: DataError at the site: see its errors.log, entry ") as refused:
        play(run_config(data["east"]), federation(tmp_path, data, sent), tmp_path / "run")
    assert "line 2 and line 46 give two groups to one image" in (tmp_path / "state/east/errors.log").read_text()
    log = (tmp_path / "state" / "east" / "audit.jsonl").read_bytes()
    assert SECRET not in str(refused.value) and not [text for text in (*sent, log) if SECRET.encode() in text]


def test_preflight_counts_the_groups_of_a_site_and_of_a_runs_splits(tmp_path):
    bundle, data = tmp_path / "bundle", own_data(tmp_path, "folder")
    bundle.mkdir()

    def groups(*run, **changes):
        own = {"site": "east", "superlink": "127.0.0.1:1", "data": data["east"], "folder": "state"} | changes
        (bundle / "site.toml").write_text(tomli_w.dumps(own))
        return [finding.text for finding in preflight(bundle, *run) if finding.topic == "groups"]

    counted = "8 (patients, cases or slides), of 4 to 9 images; their names do not leave the site"
    assert groups() == [counted]
    config = run_config(data["east"])
    site = SiteConfig.parse(settings(tmp_path, "east", data["east"]))
    each = count_groups(own_domain(site), split_rows(site, config, own_domain(site)))
    text = f"of this run's splits: train {each['train']}, val {each['val']}, local_test {each['local_test']}"
    assert sum(each.values()) == 8 and groups(config) == [counted, f"{text}; none is in two of them"]
    loose = groups(replace(config, train=replace(config.train, disjoint=None)))
    assert (
        loose[0] == counted and "the run does not keep a group in one split: set train.disjoint = 'groups'" in loose[1]
    )
    assert groups(config, role="guest", domain="east")[1:] == ["of this run's splits: test 8; none is in two of them"]
    without = groups(data=data["east"].replace(f", groups='{PATTERN}'", ""))
    assert without == ["none are named; a run with train.disjoint = 'groups' cannot train here"]


def test_a_pattern_with_backslashes_reaches_a_site_through_its_settings(tmp_path):
    """From site.toml to Flower's config of the node; a backslash that TOML does not take is explained."""
    data = write_folder(tmp_path / "own" / "east", ["east"])
    federation = folder.FederationConfig("127.0.0.1:9443", ("east",), bind="127.0.0.1:9443")
    folder.init(tmp_path / "f", federation, {"east": {"data": data}})
    keys.enrol(tmp_path / "f" / "sites" / "east")
    command = operations.node_command(tmp_path / "f" / "sites" / "east", 7777)
    node = tomllib.loads(Path(command[command.index("--node-config") + 1]).read_text())
    assert "\\w" in node["data"] and own_domain(SiteConfig.parse(node))["east"].groups == tuple(PATIENTS["east"])
    path = tmp_path / "f" / "sites" / "east" / "site.toml"
    path.write_text(path.read_text().replace("\\\\", "\\"))
    with pytest.raises(ConfigError, match=r"site.toml cannot be read \(.*line \d.*\); fix it there; .*written twice"):
        folder.site_settings(path.parent)
