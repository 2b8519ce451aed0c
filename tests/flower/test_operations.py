"""A federation's folder: who may read what in it, and what Flower's programs are told."""

import json
import re
import socket
import ssl
import stat
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedbeyond import tree
from fedbeyond.classifier import read
from fedbeyond.cli.main import app
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import run_folder, runner
from fedbeyond.experiment.build import build_method
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import answer_limits
from fedbeyond.flower import app as flower
from fedbeyond.flower.deploy import certificates, keys, local, operations, processes
from fedbeyond.flower.deploy import folder as folders
from fedbeyond.flower.deploy.folder import FederationConfig
from fedbeyond.flower.deploy.preflight import preflight
from fedbeyond.flower.policy import Policy
from fedbeyond.flower.site_config import SiteConfig
from fedbeyond.flower.site_ledger import Entry
from fedbeyond.wrappers.privacy import epsilon

CHARTER = FederationConfig("link.example.org:9443", ("north", "south"), ("west",), deadline=60.0)


@pytest.fixture
def folder(tmp_path):
    folders.init(tmp_path / "federation", CHARTER)
    keys.enrol_all(tmp_path / "federation")
    return tmp_path / "federation"


def test_a_new_federation_holds_no_private_key_of_a_site(tmp_path):
    folders.init(tmp_path / "f", CHARTER)
    for name in ("north", "south", "west"):
        written = {path.name for path in (tmp_path / "f" / "sites" / name).iterdir()}
        assert written == {"site.toml", "ca.crt", "policy.toml", "README.txt"}
        steps = (tmp_path / "f" / "sites" / name / "README.txt").read_text()
        assert f"{name} in the federation" in steps and "fedbeyond join --enrol" in steps
    private = [path for path in (tmp_path / "f").rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert private == [tmp_path / "f" / "server" / certificates.SERVER_KEY]
    assert not (tmp_path / "f" / "server" / "sites").exists()


def test_the_policy_that_a_site_receives_allows_everything_and_can_be_used_line_by_line(tmp_path):
    folders.init(tmp_path / "f", CHARTER)
    path = tmp_path / "f" / "sites" / "north" / "policy.toml"
    assert folders.site_settings(path.parent)["policy"] == str(path)
    assert Policy.read(path) == Policy()
    lines = re.findall(r"^# (\w+ = .*)$", path.read_text(), re.M)
    path.write_text("\n".join(lines))
    assert Policy.read(path).approval
    keys_of_a_policy = {field.name for field in fields(Policy)}
    assert {line.partition(" ")[0] for line in lines} == keys_of_a_policy
    documented = (
        (Path(__file__).parents[2] / "docs" / "deployment.md").read_text().split("### A policy")[1].split("```")[1]
    )
    assert {line.partition(" ")[0] for line in documented.splitlines() if line} == keys_of_a_policy
    run = Config(method="fedavg+dp(noise=4.0)", target="west", train=Train(disjoint="groups"))
    Policy(**tomllib.loads(documented)).ensure_allowed(run, build_method(run))  # it does not forbid everything


def test_secrets_are_for_their_owner_alone(folder):
    secret = [folder / "server" / certificates.SERVER_KEY, *folder.glob("sites/*/key")]
    assert len(secret) == 4 and {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    bundles = [folder / "server", *folder.glob("sites/*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in bundles} == {0o700}
    assert not [path for path in (folder / "server").rglob("*") if path.name == "key"]  # sites' keys stay with sites


def test_the_servers_certificate_is_signed_by_the_federation_for_its_names(folder):
    root, leaf = (
        x509.load_pem_x509_certificate((folder / "server" / n).read_bytes()) for n in ("ca.crt", "server.pem")
    )
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    context = ssl.create_default_context(cafile=str(folder / "sites" / "north" / "ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1


def test_each_site_has_a_key_of_its_own_that_the_server_knows_by_name(folder):
    halves = set()
    for name in ("north", "south", "west"):
        key = load_ssh_private_key((folder / "sites" / name / "key").read_bytes(), None)
        known = load_ssh_public_key((folder / "server" / "sites" / f"{name}.pub").read_bytes())
        assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
        assert key.public_key().public_numbers() == known.public_numbers()
        halves.add(known.public_numbers().x)
    assert len(halves) == 3


def test_a_site_is_told_its_name_its_role_and_where_the_server_is(folder):
    own = SiteConfig.parse(tomllib.loads((folder / "sites" / "west" / "site.toml").read_text()))
    assert (own.site, own.role, own.superlink) == ("west", "guest", "link.example.org:9443")
    assert folders.read_federation_config(folder) == CHARTER


def test_a_federation_is_read_as_it_was_written_whatever_its_classes_are_called(tmp_path):
    classes = ("naïve", 'a "b" \\c', "tab\t", "\N{GRINNING FACE}")
    federation = CHARTER._replace(classes=classes, deadline=0.5)
    folders.init(tmp_path / "f", federation)
    assert folders.read_federation_config(tmp_path / "f") == federation
    assert SiteConfig.parse(folders.site_settings(tmp_path / "f" / "sites" / "west")).classes == classes


def test_flower_is_started_with_tls_and_keys_and_without_reports(folder, tmp_path, monkeypatch):
    link, node = operations.link_command(folder), operations.node_command(folder / "sites" / "north", 7777)
    assert "--enable-supernode-auth" in link and "--disable-runtime-dependency-installation" in link
    assert "--insecure" not in link + node and link[link.index("--host") + 1] == "127.0.0.1"
    assert node[node.index("--auth-supernode-private-key") + 1].endswith("sites/north/key")
    told = tomllib.loads(Path(node[node.index("--node-config") + 1]).read_text())
    assert told["folder"] == str(folder / "sites" / "north" / "state")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook: colours would be part of the JSON that flwr prints
    quiet = operations.environment(tmp_path)
    assert "FORCE_COLOR" not in quiet
    assert quiet["FLWR_TELEMETRY_ENABLED"] == "0" and quiet["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_each_site_that_trains_has_a_secret_of_its_own(folder):
    paths = [folder / "sites" / name / "secret" for name in ("north", "south")]
    assert len({path.read_bytes() for path in paths}) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_bytes()) == 32 for path in paths)
    assert not (folder / "sites" / "west" / "secret").exists()
    assert folders.site_settings(folder / "sites" / "north")["secret"] == str(paths[0])
    assert not any(
        paths[0].read_bytes() in path.read_bytes() for path in (folder / "server").rglob("*") if path.is_file()
    )


def test_a_proxy_listens_where_sites_find_the_server_and_passes_on_what_they_send(folder, tmp_path):
    said = (folder / "server" / "nginx.conf").read_text()
    assert "listen 9443 ssl;" in said and said.count("proxy_pass") == 1
    assert "proxy_pass https://127.0.0.1:8443/v1/fleet/;" in said and str(folder) not in said  # it may be moved
    here = CHARTER._replace(address="127.0.0.1:9443")
    folders.init(tmp_path / "here", here)
    assert "listen 127.0.0.1:9443 ssl;" in (tmp_path / "here" / "server" / "nginx.conf").read_text()
    folders.init(tmp_path / "bare", here._replace(bind=here.address))
    assert not (tmp_path / "bare" / "server" / "nginx.conf").exists()  # sites reach the server itself


def test_a_folder_is_never_written_over(folder):
    before = (folder / "server" / certificates.SERVER_KEY).read_bytes()
    with pytest.raises(ConfigError, match=r"already exists; choose another folder"):
        folders.init(folder, CHARTER)
    assert (folder / "server" / certificates.SERVER_KEY).read_bytes() == before


def test_a_federation_is_not_served_where_somebody_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        folders.init(tmp_path / "f", CHARTER._replace(bind=address))
        with pytest.raises(FederationError, match=rf"{address} is in use, .* stop it, then serve again"):
            processes.running_server(tmp_path / "f").__enter__()
    assert not (tmp_path / "f" / "server" / "server.log").exists()  # nothing was started


def test_a_trial_does_not_begin_in_the_folder_of_another(tmp_path, small):
    config, own = Config(**small), {"data": "styles(share=0.1)"}
    sites = ("cartoon", "painting", "photo")
    here = FederationConfig("127.0.0.1:1", sites, ("sketch",), "127.0.0.1:1")
    folders.init(tmp_path / "data", here, {name: own for name in (*sites, "sketch")})
    folders.init(tmp_path / "sites", CHARTER)
    for name in ("data", "sites"):
        with pytest.raises(ConfigError, match=f"{name} holds a federation with other sites or data; choose another"):
            local.run_local_federation(config, tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize(
    ("charter", "complaint"),
    [
        (CHARTER._replace(sites=("a b",)), "only alphanumeric characters, - and _, .* not 'a b'"),
        (CHARTER._replace(sites=("../x",)), "only alphanumeric characters"),
        (CHARTER._replace(sites=("-x",)), "not begin with -; not '-x'"),  # it would be an option of a command
        (CHARTER._replace(sites=("x" * 65,)), "at most 64 bytes, and 'x+' has 65; shorten it"),
        (CHARTER._replace(sites=("é" * 33,)), "at most 64 bytes, and 'é+' has 66; shorten it"),
        (CHARTER._replace(sites=("NUL",)), "'NUL' is reserved"),
        (CHARTER._replace(sites=("Server",)), "'Server' is reserved"),
        (CHARTER._replace(sites=("north", "North")), "'North' and 'north' differ only in case"),
        (CHARTER._replace(sites=("a", "a")), "'a' is given twice"),
        (CHARTER._replace(sites=()), "needs at least one site"),
        (CHARTER._replace(guests=("north",)), "'north' is given twice"),
        (CHARTER._replace(address="nowhere"), "an address must be host:port"),
        (CHARTER._replace(address="https://link.example.org:443"), "an address must be host:port"),
        (CHARTER._replace(address="::1:443"), r"must be host:port, as in .*\[2001:db8::7\]:443, not '::1:443'"),
        (CHARTER._replace(address="[::g]:443"), r"\[::g\] in .* is not an IPv6 address"),
        (CHARTER._replace(address="[10.0.0.1]:443"), "is not an IPv6 address"),
        (CHARTER._replace(address="10.0.0.256:443"), "'10.0.0.256' in .* is not the name or IP address of a host"),
        (CHARTER._replace(address="my host:443"), "'my host' in .* is not the name"),
        (CHARTER._replace(address="köln.example.org:443"), "is not the name"),
        (CHARTER._replace(address=":443"), "'' in ':443' is not the name"),
        (CHARTER._replace(address="link.example.org:0"), "the port of .* must be from 1 to 65535"),
        (CHARTER._replace(address="link.example.org:65536"), "the port of .* must be from 1 to 65535"),
        (CHARTER._replace(bind="127.0.0.1:99999"), "the port of '127.0.0.1:99999' must be from 1 to 65535"),
        (CHARTER._replace(address="0.0.0.0:443"), "sites cannot reach the server at 0.0.0.0:443"),
        (CHARTER._replace(address="[::]:443"), r"sites cannot reach the server at \[::\]:443"),
        (CHARTER._replace(deadline=float("nan")), "deadline must be a number of seconds above 0, not nan"),
        (CHARTER._replace(deadline=0.0), "deadline must be a number of seconds above 0"),
        (CHARTER._replace(classes=("cat", "cat")), "the classes must differ, and 'cat' is given twice"),
        (CHARTER._replace(classes=("",)), "a class must be a name, not ''"),
        (CHARTER._replace(address="link.example.org:8443"), r"cannot both use port 8443 .* --bind 127\.0\.0\.1:8444"),
        (CHARTER._replace(address="h:65535", bind="[::1]:65535"), r"both use port 65535 .* --bind 127\.0\.0\.1:65534"),
    ],
)
def test_a_charter_that_cannot_be_is_refused_before_anything_is_written(charter, complaint, tmp_path):
    with pytest.raises(ConfigError, match=complaint):
        folders.init(tmp_path / "federation", charter)
    assert not (tmp_path / "federation").exists()


def test_a_federation_may_have_addresses_of_ipv6(tmp_path):
    charter = CHARTER._replace(address="[2001:db8::7]:443", bind="[::1]:8443")
    folders.init(tmp_path / "f", charter)
    leaf = x509.load_pem_x509_certificate((tmp_path / "f" / "server" / "server.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["2001:db8::7", "::1", "127.0.0.1"]
    command = operations.link_command(tmp_path / "f")
    assert command[command.index("--host") + 1 : command.index("--host") + 4] == ["::1", "--port", "8443"]
    proxy = (tmp_path / "f" / "server" / "nginx.conf").read_text()
    assert "listen [::]:443 ssl;" in proxy and "proxy_pass https://[::1]:8443/" in proxy


def test_settings_that_were_edited_are_checked_when_they_are_read(folder):
    path = folder / "federation.toml"
    path.write_text(path.read_text().replace("link.example.org:9443", "link.example.org:94430"))
    with pytest.raises(ConfigError, match=r"federation\.toml: the port of .* must be from 1 to 65535"):
        folders.read_federation_config(folder)


def test_what_is_no_federation_is_said(tmp_path):
    with pytest.raises(
        ConfigError, match=r"federation\.toml cannot be read .* give a folder that 'fedbeyond federation init'"
    ):
        folders.read_federation_config(tmp_path)


def test_agreed_numbers_of_images_reach_the_server(folder, small, tmp_path, monkeypatch):
    path = folder / "federation.toml"
    path.write_text(path.read_text() + "north = 120\n")  # the table is the last of the file
    assert folders.read_federation_config(folder).images == {"north": 120}
    monkeypatch.setattr(operations, "flwr", lambda *words: '{"success": true, "run-id": 7}')
    with pytest.raises(ConfigError, match="target is 'sketch', but the guests are west: set target to the guests"):
        operations.submit(folder, Config(method="fedavg", **small), tmp_path)
    operations.submit(folder, Config(method="fedavg", **small | {"target": "west"}), tmp_path)
    project = tomllib.loads((folder / "server" / "app" / "pyproject.toml").read_text())
    given = project["tool"]["flwr"]["app"]["config"]
    agreed = []
    monkeypatch.setattr(flower.enrolment, "prepare", lambda *words, **options: agreed.append(options["agreed"]))
    monkeypatch.setattr(flower.runner, "run", lambda *words: ())
    flower.server_app()(None, flower.Context(1, 1, {}, flower.RecordDict(), given))
    assert agreed == [{"north": 120}]


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        ('images = "many"', "images must be a table"),
        ("images = { north = -1 }", r"images must be a table of sites .* as in images = \{ north = 1200 \}"),
        ("images = { north = true }", "images must be a table"),
        ("images = { nort = 7 }", "no site is 'nort'; did you mean 'north'"),
        ("images = { west = 7 }", "no site is 'west'"),  # a guest
    ],
)
def test_agreed_numbers_that_cannot_be_are_refused(folder, images, complaint):
    path = folder / "federation.toml"
    path.write_text(path.read_text().replace("[images]", images))
    with pytest.raises(ConfigError, match=rf"federation\.toml: .*{complaint}"):
        folders.read_federation_config(folder)


def test_the_command_writes_the_folder_and_says_who_does_what(tmp_path, capsys):
    words = [
        "federation",
        "init",
        str(tmp_path / "f"),
        "--address",
        "h:1",
        "--site",
        "a",
        "--site",
        "b",
        "--guest",
        "c",
    ]
    app(words, standalone_mode=False)
    said = capsys.readouterr().out
    assert "fedbeyond serve" in said and f"nginx -p {tmp_path / 'f'}" in said
    assert [f"fedbeyond join --enrol {name}\n" in said for name in "abc"] == [True] * 3
    assert f"fedbeyond federation register {tmp_path / 'f'} NAME KEY" in said
    assert folders.read_federation_config(tmp_path / "f").guests == ("c",)


def look(bundle, *run):
    """What preflight says, by what it is about."""
    return {finding.topic: finding for finding in preflight(bundle, *run)}


def test_preflight_names_what_is_not_ready_and_what_would_leave(folder, small):
    bundle = folder / "sites" / "north"
    here = (bundle / "site.toml").read_text().replace("link.example.org:9443", "127.0.0.1:1")
    (bundle / "site.toml").write_text(here)
    found = look(bundle)
    assert not found["server"].ok and "127.0.0.1:1 cannot be reached" in found["server"].text
    assert not found["data"].ok and "/data" in found["data"].text
    assert found["key"].ok and found["versions"].ok
    (bundle / "key").chmod(0o644)
    own = {"site": "photo", "superlink": "127.0.0.1:1", "data": "styles(share=0.05)", "folder": "state"}
    (bundle / "site.toml").write_text(tomli_w.dumps(own | {"policy": "policy.toml"}))
    (bundle / "policy.toml").write_text('sends = ["parameters", "statistics"]')
    found = look(bundle, Config(method="fedsb", **small))
    assert not found["key"].ok and "chmod 600" in found["key"].text
    assert found["data"].ok and "images of photo" in found["data"].text and found["run"].ok
    told = [finding.text for finding in preflight(bundle, Config(method="fedsb", **small)) if finding.topic == "leaves"]
    model = tree.size(read(runner.prepare(Config(method="fedsb", **small)).nets["model"]))
    assert f"in reply to 'train': model (parameters, {model:,} bytes)" in told
    assert any("in reply to 'statistics': " in line and "in 4 exchanges" in line for line in told)
    enrolling = "site, role, shape, fedbeyond, wire, numerics, classes, domain, images, bytes of private state"
    assert f"on enrolling: {enrolling}" in told and sum("'evaluate'" in line for line in told) == 1
    (bundle / "policy.toml").write_text("")
    told = [finding.text for finding in preflight(bundle, Config(method="fedavg+sha", **small))]
    assert "in reply to 'sha_score': losses (scalars)" in told
    (bundle / "policy.toml").write_text("scores = false")
    refused = look(bundle, Config(method="fedavg+sha", **small))["run"]
    assert not refused.ok and "sends 'losses' in reply to 'sha_score', of kind scalars" in refused.text
    told = [finding.text for finding in preflight(bundle, Config(method="fedavg", **small))]
    assert "in reply to 'evaluate': nothing, because the site's policy allows no scores to leave" in told
    (bundle / "policy.toml").write_text('sends = ["parameters"]')
    refused = look(bundle, Config(method="fedavg+ga", **small))["run"]
    assert not refused.ok and "which is of kind scalars; the site's policy allows parameters to leave" in refused.text
    refused = look(bundle, Config(method="fedsb", **small))["run"]
    assert not refused.ok and "sends statistics" in refused.text and "train.batchnorm = 'average'" in refused.text


def test_preflight_says_what_a_site_has_spent(folder, small):
    bundle = folder / "sites" / "north"
    own = {"site": "photo", "superlink": "127.0.0.1:1", "data": "styles(share=0.05)", "folder": "state", "secret": ""}
    (bundle / "site.toml").write_text(tomli_w.dumps(own | {"policy": "policy.toml"}))
    (bundle / "policy.toml").write_text("max_epsilon = 1.6\nmax_evaluations = 9")
    assert look(bundle)["spent"] == (True, "spent", "nothing has left yet")
    for number in range(3):
        left = Entry("run", "config", 2, "ask", "train", number, str(number), noise=5.0)
        answer_limits.admit_reply(bundle / "state", Policy(), left)
    spent = epsilon(5.0, 1e-5, 3)
    said = f"3 replies in 1 runs; epsilon {spent:.3g} of 1.6 at delta 1e-05; 0 of 9 evaluations of models"
    assert look(bundle)["spent"] == (True, "spent", said)
    run = Config(method="fedavg+dp(noise=5)", train=Train(rounds=3, batchnorm="average"), **small)
    refused = look(bundle, run)["run"]
    assert not refused.ok and "with all 3 rounds of this run, 6 replies of this site in all runs" in refused.text
    (bundle / "state" / "ledger.jsonl").write_text("")
    assert not look(bundle)["spent"].ok and "is damaged" in look(bundle)["spent"].text


def test_preflight_says_which_setting_is_wrong(folder):
    (folder / "sites" / "north" / "site.toml").write_text('site = "north"\ncolour = "blue"')
    assert "colour is not known" in look(folder / "sites" / "north")["settings"].text


def test_preflight_compares_a_sites_classes_with_the_federations(tmp_path):
    own = {"photo": {"data": "styles(share=0.05)"}}
    here = CHARTER._replace(address="127.0.0.1:1", sites=("photo",), classes=("cat", "dog"))
    folders.init(tmp_path / "f", here, own)
    bundle = tmp_path / "f" / "sites" / "photo"
    told = look(bundle)["data"]
    assert (
        not told.ok and "lacks cat, has elephant" in told.text and "the federation's classes are cat, dog" in told.text
    )


def test_classes_reach_a_site_through_flowers_config_which_knows_no_lists(tmp_path):
    folders.init(tmp_path / "f", CHARTER._replace(classes=("cat", "dog")))
    keys.enrol(tmp_path / "f" / "sites" / "north")
    command = operations.node_command(tmp_path / "f" / "sites" / "north", 7777)
    node = tomllib.loads(Path(command[command.index("--node-config") + 1]).read_text())
    assert isinstance(node["classes"], str) and SiteConfig.parse(node).classes == ("cat", "dog")
    assert folders.read_federation_config(tmp_path / "f").classes == ("cat", "dog")


def test_a_run_that_cannot_be_played_is_refused_when_it_is_submitted(folder, small, tmp_path):
    """Before anybody is asked: no server runs here."""
    with pytest.raises(ConfigError, match="erm pools the data of all sites"):
        operations.submit(folder, Config(method="erm", **small), tmp_path)
    with pytest.raises(ConfigError, match="erm pools the data of all sites"):
        local.run_local_federation(Config(method="erm", **small), tmp_path / "trial", tmp_path / "out")
    assert not (tmp_path / "trial").exists()


def test_a_site_hears_what_is_wrong_with_its_settings_before_it_joins(folder):
    path = folder / "sites" / "north" / "site.toml"
    path.write_text(path.read_text().replace('folder = "state"\n', ""))
    with pytest.raises(ConfigError, match="folder is not valid: Field required"):
        operations.node_command(path.parent, 7777)


def test_a_host_may_have_a_long_name(tmp_path):
    name = f"{'balancer-' * 6}1.cloud.europe-central.example.org"
    folders.init(tmp_path / "f", CHARTER._replace(address=f"{name}:443"))
    leaf = x509.load_pem_x509_certificate((tmp_path / "f" / "server" / "server.pem").read_bytes())
    assert name in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )


@pytest.mark.slow
def test_preflight_of_the_server_names_what_is_not_ready(tmp_path, small):
    folder = tmp_path / "federation"
    folders.init(folder, CHARTER._replace(address="127.0.0.1:1"))
    found = look(folder, Config(method="fedavg", **small))
    assert found["settings"].text.startswith("2 sites, 1 guests") and found["key"].ok
    register = f"no key of north, south, west; .* fedbeyond federation register {folder} north KEY"
    assert not found["keys"].ok and re.match(register, found["keys"].text)
    keys.enrol_all(folder)
    assert look(folder)["keys"].ok
    assert found["validity"].ok and "valid for 82" in found["validity"].text
    assert not found["sites"].ok and f"fedbeyond serve {folder}" in found["sites"].text
    assert not found["control"].ok and "nothing answers at 127.0.0.1:1" in found["control"].text
    assert f"nginx -p {folder / 'server'} -c nginx.conf" in found["control"].text
    assert not found["run"].ok and "the guests are west" in found["run"].text
    (folder / "server" / "sites" / "south.pub").unlink()
    assert "no key of south;" in look(folder)["keys"].text
    refused = look(folder, Config(method="erm", **small))["run"]
    assert not refused.ok and "pools the data of all sites" in refused.text


def test_preflight_of_the_server_complains_of_a_door_that_is_open_to_all(tmp_path):
    folders.init(tmp_path / "f", CHARTER._replace(address="127.0.0.1:1", bind="0.0.0.0:8443"))
    told = look(tmp_path / "f")["control"]
    assert not told.ok and "anyone who can reach 0.0.0.0:8443 can start runs" in told.text


def test_who_serves_or_joins_does_without_torch(folder):
    code = """import sys
from pathlib import Path
from fedbeyond.cli import federation
from fedbeyond.flower.deploy import chores, keys, operations, processes
operations.link_command(Path(sys.argv[1]))
operations.node_command(Path(sys.argv[1]) / "sites" / "north", 1)
sys.exit('torch' in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 0


def test_a_folder_that_holds_another_run_is_refused_before_anything_is_started(tmp_path, small):
    config, other = Config(seed=1, **small), Config(seed=1, optimizer="sgd(lr=0.1)", **small)
    folder = run_folder.path(tmp_path / "out", config)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(other.identity()))
    (folder / "done").touch()
    with pytest.raises(ConfigError, match=r"holds another run: optimizer is sgd\(lr=0\.1\) there"):
        local.run_local_federation(config, tmp_path / "federation", tmp_path / "out")
    assert not (tmp_path / "federation").exists()
