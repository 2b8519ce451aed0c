"""A run starts at a site only after the site's operator approved its configuration, whatever the server claims."""

import json
from dataclasses import replace

import pytest

from fedbeyond import NUMERICS, WIRE
from fedbeyond.errors import ApprovalError, ConfigError, FederationError, StorageError
from fedbeyond.experiment import run_folder, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import approvals, enrolment
from fedbeyond.flower.deploy import folder as folders
from fedbeyond.flower.deploy.preflight import preflight
from fedbeyond.flower.messages import ENROL, EVALUATE, REPLY, WAITING, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_config import SiteConfig
from support.commands import fedbeyond
from support.grids import Nodes

flower.PAUSE = 0.0  # answers are there at once
SITES, UNSEEN = ("cartoon", "painting", "photo"), "sketch"


@pytest.fixture
def config(small):
    train = Train(rounds=2, batch_size=8, batchnorm="average")
    return Config(method="fedsb(budget=4)", train=train, **small)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(flower, "ASK_AGAIN", 0.0)


def nodes(folder):
    """A federation with the built-in data, in which photo's policy requires approval."""
    folder.mkdir(parents=True)
    (folder / "policy.toml").write_text("approval = true\n")
    app, grid = flower.client_app(), {}
    for place, site in enumerate((*SITES, UNSEEN)):
        own = {"site": site, "data": "styles(share=0.05)", "folder": str(folder / site)}
        own |= {"policy": str(folder / "policy.toml")} if site == "photo" else {}
        grid[100 - place] = (app, own | {"role": "guest" if site == UNSEEN else "train"})
    return Nodes(grid)


def notes(config, **claims):
    run = {"config": enrolment.shared_config(config), "run": config.digest(), "sources": 3}
    return run | {"wire": WIRE, "numerics": NUMERICS} | claims


def site(folder):
    (folder / "policy.toml").write_text("approval = true\n")
    return SiteConfig(site="photo", data="styles(share=0.05)", folder=folder / "state", policy=folder / "policy.toml")


def test_a_run_that_is_not_approved_gets_no_answer_and_no_data_are_read(config, tmp_path):
    own = replace(site(tmp_path), data="folder(root='/nowhere')")  # reading them would be another error
    answer = respond(own, Message(ENROL, notes(config)))
    digest = approvals.run_digest(config)
    assert answer.subject == WAITING and f"whose digest is {digest}" in answer.notes["reason"]
    assert f"fedbeyond approve FOLDER {digest}" in answer.notes["reason"] and str(tmp_path) not in answer.text
    assert [run.digest for run in approvals.waiting(own.folder)] == [digest]
    approvals.approve(own.folder, digest)
    assert respond(own, Message(ENROL, notes(config))).notes["reason"].startswith("DataError at the site")
    assert "/nowhere" in (own.folder / "errors.log").read_text()
    assert approvals.waiting(own.folder) == []


def test_the_digest_is_computed_at_the_site_and_not_claimed_by_the_server(config, tmp_path):
    """A server that has an approval wants another run under its name: more rounds, another method, no noise."""
    own = site(tmp_path)
    digest = approvals.approve(own.folder, approvals.run_digest(config))
    assert respond(own, Message(ENROL, notes(config))).subject == REPLY
    for other in (
        replace(config, method="fedavg"),
        replace(config, seed=1),
        replace(config, train=replace(config.train, rounds=3)),
        replace(config, train=replace(config.train, epochs=2)),
        replace(config, network="convnet(width=8)"),
    ):
        lie = notes(other, run=config.digest(), digest=digest, approved=True)
        assert respond(own, Message(ENROL, lie)).subject == WAITING


def test_an_approved_run_of_two_rounds_has_no_third(config, tmp_path):
    own = site(tmp_path)
    approvals.approve(own.folder, approvals.run_digest(config))
    answer = respond(own, Message(EVALUATE, notes(config, round=2, models=["model"])))
    assert "round 3 is requested of a run of 2 rounds" in answer.notes["reason"]
    answer = respond(own, Message(EVALUATE, notes(config, round=-1, models=["model"])))  # nor one before the first
    assert "round 0 is requested of a run of 2 rounds" in answer.notes["reason"]


def test_a_digest_is_that_of_the_file_at_every_site_and_at_the_server(config):
    """Data and weights are each site's own."""
    elsewhere = replace(config, data="folder(root='/elsewhere')", public="folder(root='/public')")
    assert (
        approvals.run_digest(elsewhere) == approvals.run_digest(config) != approvals.run_digest(replace(config, seed=3))
    )
    assert len(approvals.run_digest(config)) == 32


def test_the_server_waits_for_approval_and_the_run_is_that_of_the_simulator(config, tmp_path, capsys):
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    grid, state = nodes(tmp_path / "sites"), tmp_path / "sites" / "photo"
    push = grid.push_messages

    def counted(messages):
        asked.append(len(messages))
        if len(asked) == 3:  # all were asked, then photo twice more
            approvals.approve(state, approvals.run_digest(config))
        return push(messages)

    asked, grid.push_messages = [], counted
    setup = enrolment.prepare(config, flower.FlowerTransport(grid, 60), SITES, (UNSEEN,))
    assert asked == [4, 1, 1]
    printed = capsys.readouterr().out
    assert printed.count("waiting for photo: its operator has not approved this configuration") == 1
    list(runner.run(setup, tmp_path / "flower"))
    for name in ("results.jsonl", "best.safetensors"):
        assert (tmp_path / "simulated" / name).read_bytes() == (tmp_path / "flower" / name).read_bytes()


def test_a_site_is_not_asked_all_the_time(config, tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "ASK_AGAIN", 1000.0)
    grid = nodes(tmp_path / "sites")
    flower.FlowerTransport(grid, 0.2).enrol(Message(ENROL, notes(config)), (*SITES, UNSEEN))
    assert len(grid.heard) == 4


def test_a_run_that_nobody_approves_ends_with_the_reason(config, tmp_path):
    digest = approvals.run_digest(config)
    reason = rf"not all sites enrolled \(photo: its operator has not approved .* {digest}; .*\); start or fix them"
    with pytest.raises(FederationError, match=reason):
        enrolment.prepare(config, flower.FlowerTransport(nodes(tmp_path / "sites"), 0.05), SITES, (UNSEEN,))


def test_a_run_whose_approval_is_revoked_continues_without_the_site(config, tmp_path):
    grid, state = nodes(tmp_path / "sites"), tmp_path / "sites" / "photo"
    digest = approvals.approve(state, approvals.run_digest(config))
    setup = enrolment.prepare(config, flower.FlowerTransport(grid, 5), SITES, (UNSEEN,))
    lines = runner.run(setup, tmp_path / "run")
    assert next(lines)["rejected"] == []
    approvals.revoke(state, digest)
    rejected = next(lines)["rejected"]
    assert {entry["site"] for entry in rejected} == {"photo"} and "has not approved" in rejected[0]["reason"]
    assert set(run_folder.lines(tmp_path / "run")[-1]["weights"]) == {"cartoon", "painting"}


def test_a_server_cannot_fill_the_disk_of_a_site_with_requests(config, tmp_path):
    own = site(tmp_path)
    for seed in range(approvals.MAX_WAITING + 5):
        assert respond(own, Message(ENROL, notes(replace(config, seed=seed)))).subject == WAITING
    assert len(approvals.waiting(own.folder)) == approvals.MAX_WAITING
    last = approvals.run_digest(replace(config, seed=seed))
    approvals.revoke(own.folder, last)
    large = Message(ENROL, notes(replace(config, target="x" * 2**17)))
    assert respond(own, large).subject == WAITING and len(approvals.waiting(own.folder)) == approvals.MAX_WAITING - 1
    approvals.approve(own.folder, last)  # it is approved by its full digest
    assert respond(own, Message(ENROL, notes(replace(config, seed=seed)))).subject == REPLY


def write_waiting(folder, digest, text):
    (folder / approvals.APPROVALS).mkdir(parents=True, exist_ok=True)
    (folder / approvals.APPROVALS / f"{digest}.waiting.json").write_text(text)


def test_a_new_run_takes_the_place_of_the_oldest_that_nobody_approved(config, tmp_path):
    for day in range(approvals.MAX_WAITING):
        entry = {"asked": f"2026-01-{31 - day}T12:00:00+00:00", "config": {}}
        write_waiting(tmp_path, f"{day:032x}", json.dumps(entry))
    with pytest.raises(ApprovalError):
        approvals.ensure_approved(tmp_path, config)
    found = [run.digest for run in approvals.waiting(tmp_path)]
    assert found[-1] == approvals.run_digest(config) and len(found) == approvals.MAX_WAITING
    assert f"{approvals.MAX_WAITING - 1:032x}" not in found and f"{0:032x}" in found


@pytest.mark.parametrize("text", ["{}", "{", "[]", '{"asked": "today", "config": 1}', '{"asked": "today"}'])
def test_a_waiting_run_that_cannot_be_read_is_none_and_is_stored_again(config, text, tmp_path):
    digest = approvals.run_digest(config)
    for name in ("a" * 32, digest):
        write_waiting(tmp_path, name, text)
    assert approvals.waiting(tmp_path) == []
    with pytest.raises(ApprovalError, match=digest):
        approvals.ensure_approved(tmp_path, config)
    assert [run.digest for run in approvals.waiting(tmp_path)] == [digest]


def test_an_approval_that_cannot_be_read_costs_no_other(tmp_path):
    path = tmp_path / approvals.APPROVALS / f"{'a' * 32}.approved.json"
    approvals.approve(tmp_path, "a" * 32)
    path.write_text("{")
    with pytest.raises(StorageError, match=r"cannot be read \(.*\); delete this file, and approve the run again"):
        approvals.approved(tmp_path)


def test_a_run_that_the_policy_forbids_does_not_wait(config, tmp_path):
    own = site(tmp_path)
    (tmp_path / "policy.toml").write_text('approval = true\nmethods = ["fedavg"]\n')
    answer = respond(own, Message(ENROL, notes(config)))
    assert "does not allow 'fedsb'" in answer.notes["reason"] and approvals.waiting(own.folder) == []


@pytest.fixture
def bundle(tmp_path):
    own = {"photo": {"data": "styles(share=0.05)"}}
    folders.init(tmp_path / "f", folders.FederationConfig("127.0.0.1:1", ("photo",), bind="127.0.0.1:1"), own)
    path = tmp_path / "f" / "sites" / "photo"
    (path / "policy.toml").write_text("approval = true\n")
    return path


def test_an_operator_reads_what_would_leave_and_approves_it(bundle, config, call):
    own, digest = SiteConfig.parse(folders.site_settings(bundle)), approvals.run_digest(config)
    assert fedbeyond("approve", bundle) == "no run waits for approval\n"
    with pytest.raises(ApprovalError):
        approvals.ensure_approved(own.folder, config)
    listed = fedbeyond("approve", bundle)
    assert f"{digest} waits since" in listed and "fedsb(budget=4) on convnet(width=4)" in listed
    assert "2 rounds of 1 epochs, batches of 8; unseen: sketch; seed 0" in listed
    assert "leaves: in reply to 'train': model (parameters, " in listed
    assert f"fedbeyond approve {bundle} {digest}\n" in listed
    assert f"approved {digest}" in fedbeyond("approve", bundle, digest[:8])
    approvals.ensure_approved(own.folder, config)
    listed = fedbeyond("approve", bundle)
    assert f"{digest} approved " in listed and "no run waits" in listed
    assert f"revoked {digest}" in fedbeyond("approve", bundle, digest, "--revoke")
    with pytest.raises(ApprovalError):
        approvals.ensure_approved(own.folder, config)
    assert f"revoked {digest}" in fedbeyond("approve", bundle, digest, "--revoke")  # it waits no more
    code, _, errors = call("approve", bundle, digest, "--revoke")
    assert code == 2 and "is not approved and does not wait" in errors


def test_what_a_server_wrote_does_not_reach_the_terminal_as_control_characters(bundle, config):
    own = SiteConfig.parse(folders.site_settings(bundle))
    evil = replace(config, target="\x1b[2Japproved")
    with pytest.raises(ApprovalError):
        approvals.ensure_approved(own.folder, evil)
    assert "\x1b" not in fedbeyond("approve", bundle)


def test_a_run_is_approved_in_advance_by_the_digest_that_preflight_prints(bundle, config, tmp_path):
    def look():
        return {finding.topic: finding for finding in preflight(bundle, config)}

    digest = approvals.run_digest(config)
    assert look()["run"].text.endswith(f"digest {digest}") and not look()["approval"].ok
    fedbeyond("approve", bundle, digest)
    assert look()["approval"].ok
    (bundle / "policy.toml").write_text("")
    assert "approval" not in look()


@pytest.mark.parametrize("given", ["1234567", "x" * 32, "0" * 33, "../../../etc", "12345678", "ABCDEF01"])
def test_what_is_no_digest_is_refused(bundle, given):
    with pytest.raises(ConfigError, match="digest"):
        approvals.approve(SiteConfig.parse(folders.site_settings(bundle)).folder, given)


def test_digits_that_two_runs_share_name_neither(tmp_path):
    folder = tmp_path / approvals.APPROVALS
    folder.mkdir()
    for last in "01":
        entry = {"asked": "today", "config": {}}
        (folder / f"{'a' * 31}{last}.waiting.json").write_text(json.dumps(entry))
    with pytest.raises(ConfigError, match=f"2 digests begin with {'a' * 8}; give all 32 digits"):
        approvals.approve(tmp_path, "a" * 8)
    assert approvals.approve(tmp_path, f"{'a' * 31}1") == f"{'a' * 31}1"
    assert [run.digest for run in approvals.waiting(tmp_path)] == [f"{'a' * 31}0"]
