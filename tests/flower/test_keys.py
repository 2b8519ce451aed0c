"""A site creates its key, and nobody else has it; the operator registers the public half, and replaces none unasked."""

import io
import json
import stat
import urllib.error
from base64 import b64decode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedbeyond.errors import ConfigError, FederationError, StorageError
from fedbeyond.flower.deploy import admission, certificates, keys, operations, processes
from fedbeyond.flower.deploy import folder as folders
from fedbeyond.flower.deploy.folder import FederationConfig
from support.commands import fedbeyond

CHARTER = FederationConfig("link.example.org:9443", ("north", "south"), ("west",), "127.0.0.1:1")


@pytest.fixture
def folder(tmp_path):
    folders.init(tmp_path / "federation", CHARTER)
    return tmp_path / "federation"


def public_half(private):
    return private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_a_site_creates_its_key_and_its_secret_for_itself_alone(folder):
    bundle = folder / "sites" / "north"
    printed = fedbeyond("join", "--enrol", bundle)
    key = load_ssh_private_key((bundle / "key").read_bytes(), None)
    text = public_half(key)
    assert key.curve.name == "secp384r1" and (bundle / "key.pub").read_text() == f"{text}\n"
    assert {stat.S_IMODE((bundle / name).stat().st_mode) for name in ("key", "secret")} == {0o600}
    assert len((bundle / "secret").read_bytes()) == 32
    assert f"fedbeyond federation register FOLDER north '{text}'" in printed and keys.fingerprint(text) in printed
    assert certificates.authority_fingerprint(folder / "server" / "ca.crt") in printed
    assert "PRIVATE" not in printed and not (folder / "server" / "sites").exists()  # nobody else knows anything yet


def test_a_guest_draws_no_noise_and_has_no_secret(folder):
    keys.enrol(folder / "sites" / "west")
    assert (folder / "sites" / "west" / "key").exists() and not (folder / "sites" / "west" / "secret").exists()


def test_a_secret_that_a_site_made_before_is_kept(folder):
    (folder / "sites" / "north" / "secret").write_bytes(b"s" * 40)
    keys.enrol(folder / "sites" / "north")
    assert (folder / "sites" / "north" / "secret").read_bytes() == b"s" * 40


def test_a_second_enrolment_changes_nothing(folder):
    bundle = folder / "sites" / "north"
    keys.enrol(bundle)
    before = {name: (bundle / name).read_bytes() for name in ("key", "key.pub", "secret")}
    with pytest.raises(
        ConfigError, match=r"key already exists: this site has enrolled, and its public key is .*key\.pub"
    ):
        keys.enrol(bundle)
    assert {name: (bundle / name).read_bytes() for name in before} == before


def test_an_enrolment_that_was_interrupted_is_repeated(folder, monkeypatch):
    bundle = folder / "sites" / "north"

    def interrupt(*words):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keys, "write_key", interrupt)
        keys.enrol(bundle)
    text = keys.enrol(bundle)
    assert (bundle / "key.pub").read_text() == f"{text}\n"
    assert public_half(load_ssh_private_key((bundle / "key").read_bytes(), None)) == text


def test_a_site_without_a_key_is_asked_to_enrol(folder, call):
    code, printed, errors = call("join", folder / "sites" / "north")
    assert (
        code == 2 and f"no key yet; create it, for the operator to register: fedbeyond join --enrol {folder}" in errors
    )
    code, printed, _ = call("preflight", folder / "sites" / "north")
    assert code == 1 and f"key is missing; create it: fedbeyond join --enrol {folder}" in printed


def test_an_operator_registers_a_key_as_a_file_or_as_text(folder, tmp_path):
    first, second = (keys.enrol(folder / "sites" / name) for name in ("north", "south"))
    printed = fedbeyond("federation", "register", folder, "north", folder / "sites" / "north" / "key.pub")
    assert keys.fingerprint(first) in printed and "when it is started" in printed
    fedbeyond("federation", "register", folder, "south", f"{second} admin@south")
    assert keys.registered_keys(folder) == {"north": first, "south": second}
    stored = (folder / "server" / "sites" / "south.pub").read_text()
    assert stored == f"{second}\n" and load_ssh_public_key(stored.encode())  # without the comment
    (tmp_path / "key of south.pub").write_text(second)
    fedbeyond("federation", "register", folder, "south", tmp_path / "key of south.pub")  # again: nothing changes
    assert keys.registered_keys(folder) == {"north": first, "south": second}


def test_a_fingerprint_is_that_of_ssh_keygen():
    """What `ssh-keygen -lf` of OpenSSH 9.2 prints for the key whose private number is 7."""
    text = public_half(ec.derive_private_key(7, ec.SECP384R1()))
    assert keys.fingerprint(text) == "SHA256:6MD4KXIBALxv82Gx1JZ5pYJMWf3C7jSxbO+7AU0nAog"


def other_keys():
    wrong = ec.generate_private_key(ec.SECP256R1())
    private = ec.generate_private_key(ec.SECP384R1())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    good = public_half(private)
    return [
        (public_half(wrong), "a key of another kind .secp256r1.; Flower needs NIST P-384"),
        (public_half(ed25519.Ed25519PrivateKey.generate()), "a key of another kind .Ed25519PublicKey."),
        (pem, "is a private key, which must never leave its site. Delete it here"),
        (good.replace(" AAAA", " AAAB"), "the given key is not a public key"),
        (f"{good[:40]} {good[40:]}", "the given key is not a public key"),
        (good.split()[1], "is neither a public key nor a file with one"),
        ("no/such/key.pub", "'no/such/key.pub' is neither a public key nor a file with one"),
        ("x" * 5000, "neither a public key nor a file"),
        ("", "neither a public key nor a file"),
        ("\0", "neither a public key nor a file"),
    ]


@pytest.mark.parametrize(("given", "complaint"), other_keys(), ids=range(10))  # keys are new each time
def test_what_is_no_key_for_flower_is_refused(folder, given, complaint):
    with pytest.raises(ConfigError, match=complaint) as error:
        keys.store_key(folder, "north", given)
    assert "PRIVATE KEY-" not in str(error.value) and keys.registered_keys(folder) == {}


def test_a_private_key_in_a_file_is_refused_too(folder):
    keys.enrol(folder / "sites" / "north")
    with pytest.raises(ConfigError, match="is a private key"):
        keys.store_key(folder, "north", str(folder / "sites" / "north" / "key"))


def test_a_stranger_cannot_become_a_site_by_sending_another_key(folder):
    """It writes to the operator in the name of a site, or with the key of another."""
    keys.enrol_all(folder)
    before = keys.registered_keys(folder)
    own = public_half(ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(ConfigError, match=r"'north' has another key already \(SHA256:.*with --replace"):
        keys.store_key(folder, "north", own)
    with pytest.raises(ConfigError, match="this is the key of 'south'"):
        keys.store_key(folder, "north", before["south"], replace=True)
    with pytest.raises(ConfigError, match="the federation has no site 'nort'; did you mean 'north'"):
        keys.store_key(folder, "nort", own)
    with pytest.raises(ConfigError, match=r"no site '\.\./x'"):
        keys.store_key(folder, "../x", own)
    assert keys.registered_keys(folder) == before


class Flower:
    """The part of Flower's server that knows keys, asked by its commands: it forgets none, not even a withdrawn one."""

    def __init__(self):
        self.names, self.withdrawn, self.seen = {}, [], []

    def __call__(self, folder, group, verb, what, link, *options):
        if verb == "unregister":
            self.withdrawn.append(self.names.pop(what))
            return json.dumps({"success": True, "node-id": what})
        key = keys.read_public_key(what)
        if key in self.seen:
            return json.dumps({"success": False, "error-message": "Public key already in use."})
        self.seen.append(key)
        self.names[str(len(self.seen))] = (options[1], key)
        return json.dumps({"success": True, "node-id": str(len(self.seen))})


def test_a_key_that_was_replaced_is_withdrawn_and_not_accepted_again(folder, monkeypatch):
    """Who stole a key keeps it, and the name, unless the server is told."""
    server = Flower()
    monkeypatch.setattr(operations, "flwr", server)
    keys.enrol_all(folder)
    stolen = keys.registered_keys(folder)["north"]
    operations.register(folder)
    operations.register(folder)  # as after the server was started again
    assert sorted(server.names.values()) == sorted(keys.registered_keys(folder).items())
    (folder / "sites" / "north" / "key").unlink()
    new = keys.enrol(folder / "sites" / "north")
    keys.store_key(folder, "north", new, replace=True)
    operations.register(folder)
    assert server.withdrawn == [("north", stolen)] and ("north", new) in server.names.values()
    with pytest.raises(ConfigError, match=r"was replaced by another and is not accepted again; create a new one"):
        keys.store_key(folder, "north", stolen, replace=True)
    assert len(server.names) == 3


def lose_number(folder, server, monkeypatch):
    """Let the operator's computer fail after Flower registered the key of north, before its answer."""

    def fail(*words):
        server(*words)
        raise KeyboardInterrupt

    keys.store_key(folder, "north", keys.enrol(folder / "sites" / "north"))
    monkeypatch.setattr(operations, "flwr", fail)
    with pytest.raises(KeyboardInterrupt):
        operations.register(folder)
    monkeypatch.setattr(operations, "flwr", server)
    return keys.registered_keys(folder)["north"]


@pytest.mark.parametrize("starts", [0, 1])
def test_a_key_whose_number_is_lost_is_replaced_only_with_its_number(folder, monkeypatch, starts):
    """Else the operator believes that a stolen key is rejected, and the server accepts it."""
    server, path = Flower(), folder / "server" / keys.REGISTERED
    stolen = lose_number(folder, server, monkeypatch)
    for _ in range(starts):
        operations.register(folder)  # Flower says that it has the key already
    new = public_half(ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(
        ConfigError, match=r"may accept the old key SHA256:.* cannot be withdrawn: .* supernode list sho"
    ):
        keys.store_key(folder, "north", new, replace=True)
    assert keys.registered_keys(folder) == {"north": stolen} and server.names == {"1": ("north", stolen)}
    path.write_text(json.dumps({"accepted": {"1": stolen}}))  # as the message says
    keys.store_key(folder, "north", new, replace=True)
    operations.register(folder)
    assert server.withdrawn == [("north", stolen)] and list(server.names.values()) == [("north", new)]


def test_a_key_of_an_older_record_is_noted_without_its_number(folder, monkeypatch):
    server = Flower()
    stolen = lose_number(folder, server, monkeypatch)
    (folder / "server" / keys.REGISTERED).write_text('{"accepted": {}, "withdrawn": []}')
    operations.register(folder)
    assert keys.read_record(folder) == keys.Record({}, [], [stolen])
    file = folder / "server" / "sites" / "north.pub"
    file.unlink()
    with pytest.raises(FederationError, match=r"may accept ecdsa-.* is missing, .* write it to NAME.pub there"):
        operations.register(folder)


def test_a_key_that_the_server_did_not_get_is_registered_later_and_can_be_replaced(folder, monkeypatch):
    server = Flower()
    with monkeypatch.context() as patched:
        patched.setattr(operations, "flwr", lambda *words: '{"success": false, "error-message": "lost"}')
        keys.store_key(folder, "north", keys.enrol(folder / "sites" / "north"))
        with pytest.raises(FederationError, match="did not register"):
            operations.register(folder)
    monkeypatch.setattr(operations, "flwr", server)
    operations.register(folder)
    before = keys.registered_keys(folder)["north"]
    assert keys.read_record(folder) == keys.Record({"1": before}, [], [])
    keys.store_key(folder, "north", public_half(ec.generate_private_key(ec.SECP384R1())), replace=True)
    operations.register(folder)
    assert server.withdrawn == [("north", before)]


def test_a_damaged_record_of_keys_does_not_cost_the_servers_keys(folder):
    path = folder / "server" / keys.REGISTERED
    path.write_text("{")
    with pytest.raises(
        StorageError, match=r"registered.json cannot be read .*; restore it .*, or delete this file alone"
    ):
        keys.read_record(folder)


def test_a_key_is_registered_at_once_if_the_server_runs(folder, monkeypatch):
    server = Flower()
    monkeypatch.setattr(operations, "flwr", server)
    monkeypatch.setattr(processes, "reachable", lambda host, port: (host, port) == ("127.0.0.1", 1))
    text = keys.enrol(folder / "sites" / "north")
    assert "accepts it now" in fedbeyond("federation", "register", folder, "north", text)
    assert list(server.names.values()) == [("north", text)]


def test_an_error_of_the_server_is_no_registration(folder, monkeypatch):
    def fail(*words):
        raise FederationError("flwr supernode register failed: connection lost")

    monkeypatch.setattr(operations, "flwr", fail)
    keys.enrol_all(folder)
    with pytest.raises(FederationError, match=r"the server did not register .*pub: flwr .* connection lost"):
        operations.register(folder)
    assert keys.read_record(folder).accepted == {}


@pytest.mark.parametrize(
    ("status", "body", "known"),
    [
        (400, b'{"message": "Invalid heartbeat interval."}', True),
        (412, b'{"message": "Failed to activate SuperNode."}', False),
        (401, b'{"detail": "Invalid SuperNode authentication"}', None),
        (400, b"Bad Request", None),  # of a proxy
        (502, b"Bad Gateway", None),
    ],
)
def test_the_server_is_asked_for_a_key_with_a_signature_that_flower_accepts(folder, monkeypatch, status, body, known):
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    bundle, sent = folder / "sites" / "north", []
    text = keys.enrol(bundle)

    def answer(request, **options):
        sent.append(request)
        raise urllib.error.HTTPError(request.full_url, status, "", {}, io.BytesIO(body))

    monkeypatch.setattr(admission.urllib.request, "urlopen", answer)
    assert admission.is_registered("link.example.org:9443", bundle) is known
    (request,) = sent
    message = ActivateNodeRequest.FromString(request.data)
    assert keys.as_text(bytes_to_public_key(message.public_key)) == text and message.heartbeat_interval == 0
    headers = {name.lower(): value for name, value in request.header_items()}
    assert b64decode(headers["flwr-public-key"]) == message.public_key
    moment, signature = headers["flwr-timestamp"].encode(), b64decode(headers["flwr-signature"])
    assert verify_signature(bytes_to_public_key(message.public_key), moment, signature)


def test_a_private_key_on_the_command_line_is_refused_and_not_printed(folder, call):
    secret = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\n-----END OPENSSH PRIVATE KEY-----"
    code, printed, errors = call("federation", "register", folder, "north", secret)
    assert code == 2 and "is a private key, which must never leave its site" in errors
    assert "b3BlbnNzaC1rZXktdjE" not in printed + errors
