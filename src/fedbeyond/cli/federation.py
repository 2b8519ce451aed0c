"""The commands for operators of a federation: parse, call, print. Flower's own commands can be used as well."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Out, Settings

federation = typer.Typer(
    help="Create the folder of a federation, and register the keys of its sites.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(help="The folder that 'federation init' wrote.")]
Number = Annotated[str, typer.Argument(help="The run's number, printed by 'submit'.")]
AnyNumber = Annotated[str, typer.Argument(help="The run's number, printed by 'submit'; default: all runs.")]


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(federation, name="federation")
    for command in (serve, join, preflight, approve, submit, status, logs, stop):
        app.command()(command)
    app.command("local-federation")(local_federation)


@federation.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    address: Annotated[str, typer.Option(help="host:port at which sites reach the server.")],
    site: Annotated[list[str], typer.Option(help="A site that trains; repeat for each site.")],
    guest: Annotated[list[str], typer.Option(help="A site that only evaluates the model.")] = [],  # noqa: B006
    classes: Annotated[list[str], typer.Option("--class", help="A class of the images; repeat for each class.")] = [],  # noqa: B006
    bind: Annotated[str, typer.Option(help="host:port on which the server listens.")] = "127.0.0.1:8443",
    deadline: Annotated[float, typer.Option(help="Seconds that a site has for a reply.", min=1)] = 3600.0,
) -> None:
    """Write certificates, and a folder of settings for each site; give sites/NAME to that site."""
    from ..flower.deploy import certificates
    from ..flower.deploy.folder import PROXY, FederationConfig
    from ..flower.deploy.folder import init as write_folder

    write_folder(folder, FederationConfig(address, tuple(site), tuple(guest), bind, deadline, tuple(classes)))
    print(f"server: fedbeyond serve {folder}")
    if address != bind:
        print(f"proxy:  nginx -p {folder / 'server'} -c {PROXY}, which forwards sites from {address} to {bind}")
    for name in (*site, *guest):
        print(f"{name}: give it {folder / 'sites' / name}; it sets its data there, then: fedbeyond join --enrol {name}")
    print(f"then register the key that each site sends: fedbeyond federation register {folder} NAME KEY")
    print(f"certificate authority: {certificates.authority_fingerprint(folder / 'server' / certificates.CA)}")


@federation.command(context_settings={"ignore_unknown_options": True})  # a private key begins with hyphens
def register(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The name of the site.")],
    key: Annotated[str, typer.Argument(help="Its public key: the file key.pub, or its text in quotes.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the site's key; reject the old one.")] = False,
) -> None:
    """Register the public key that a site created with 'join --enrol'; a running server accepts it at once."""
    from ..flower.deploy.keys import fingerprint, store_key
    from ..flower.deploy.processes import register_if_serving

    stored = store_key(folder, name, key, replace)
    print(f"{name}: {fingerprint(stored)}; compare this with the site, for example by telephone")
    now = "the server accepts it now" if register_if_serving(folder) else "the server accepts it when it is started"
    print(f"{now}; the site can join")


def serve(folder: Folder) -> None:
    """Run a federation's server (a Flower SuperLink) until it is stopped."""
    from ..flower.deploy.folder import read_federation_config
    from ..flower.deploy.processes import running_server, signals_as_interrupt

    with signals_as_interrupt(), running_server(folder) as process:
        print(f"serving on {read_federation_config(folder).bind}; log: {folder / 'server' / 'server.log'}", flush=True)
        raise typer.Exit(process.wait())


def join(
    bundle: Annotated[Path, typer.Argument(help="The folder of the site, with site.toml and key.")],
    port: Annotated[
        int, typer.Option(help="A local port for the site's own processes; 0: any free port.", min=0, max=65535)
    ] = 0,
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Create the site's key and secret, and print the public key to register.")
    ] = False,
) -> None:
    """Take part as a site (a Flower SuperNode) until it is stopped; with --enrol, create the site's key instead."""
    from ..flower.deploy.chores import chores
    from ..flower.deploy.processes import free_ports, run_site, signals_as_interrupt

    def report(line: str) -> None:
        print(line, flush=True)

    if enrol:
        return _enrol(bundle)
    with signals_as_interrupt(), chores(bundle, report):
        run_site(bundle, port or free_ports(1)[0], report)


def _enrol(bundle: Path) -> None:
    from ..flower.deploy import certificates, keys
    from ..flower.deploy.folder import site_settings

    public_key, name = keys.enrol(bundle), site_settings(bundle)["site"]
    print(f"created {bundle / certificates.SITE_KEY}; it must never leave this computer. The public key of {name}:\n")
    print(public_key)
    print("\nSend it to the federation's operator, who registers it:\n")
    print(f"fedbeyond federation register FOLDER {name} '{public_key}'")
    print("\nCompare these fingerprints with the operator, for example by telephone:")
    print(f"key of {name}: {keys.fingerprint(public_key)}")
    print(f"certificate authority: {certificates.authority_fingerprint(bundle / certificates.CA)}")
    print(f"\nThen take part: fedbeyond join {bundle}")


def approve(
    bundle: Annotated[Path, typer.Argument(help="The folder of the site, with site.toml.")],
    digest: Annotated[str, typer.Argument(help="The digest of a configuration; default: list what waits.")] = "",
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the approval.")] = False,
) -> None:
    """Approve a run at a site whose policy has approval = true, or list the runs that wait and what they would send."""
    from ..flower import approvals
    from ..flower.deploy.folder import site_settings
    from ..flower.deploy.waiting_runs import describe_runs
    from ..flower.site_config import SiteConfig

    site_config = SiteConfig.parse(site_settings(bundle))
    if not digest:
        print("\n".join(describe_runs(site_config, bundle)))
    elif revoke:
        print(f"revoked {approvals.revoke(site_config.folder, digest)}; the site answers no more messages of this run")
    else:
        print(f"approved {approvals.approve(site_config.folder, digest)}; the server asks again within a minute")


def preflight(
    folder: Annotated[Path, typer.Argument(help="The folder of a site, or the folder that 'federation init' wrote.")],
    config: Annotated[
        Path | None, typer.Argument(help="A run to check as well: can it run, what would leave a site.")
    ] = None,
) -> None:
    """Check whether a site or the server is ready, and print what a run would send; exit code 1 if it is not ready."""
    from ..experiment.config import load
    from ..flower.deploy.preflight import preflight

    ready = []
    for finding in preflight(folder, load(config) if config else None):
        ready.append(finding.ok)
        print(f"{'ok' if finding.ok else 'FAILED':6} {finding.topic:9} {finding.text}")
    raise typer.Exit(0 if all(ready) else 1)


def submit(
    folder: Folder,
    config: Annotated[Path, typer.Argument(help="A TOML file, as for 'run'.")],
    settings: Settings = [],  # noqa: B006
    out: Out = Path("runs"),
) -> None:
    """Start a run on a running federation; the same command again resumes it."""
    from ..experiment.config import load
    from ..flower.deploy.operations import submit as send

    number = send(folder, load(config, settings, grid=False), out)
    print(f"run {number}; fedbeyond logs {folder} {number}")


def status(folder: Folder, number: AnyNumber = "") -> None:
    """Print the status of runs, as Flower reports it."""
    from ..flower.deploy.operations import LINK, flwr

    print(flwr(folder, "list", LINK, *(("--run-id", number) if number else ())), end="")


def logs(folder: Folder, number: Number) -> None:
    """Print the log of a run."""
    from ..flower.deploy.operations import LINK, flwr

    print(flwr(folder, "log", number, LINK, "--show"), end="")


def stop(folder: Folder, number: Number) -> None:
    """Stop a run; finished rounds are kept."""
    from ..flower.deploy.operations import LINK, flwr

    print(flwr(folder, "stop", number, LINK), end="")


def local_federation(
    config: Annotated[Path, typer.Argument(help="A TOML file, as for 'run'.")],
    settings: Settings = [],  # noqa: B006
    folder: Annotated[Path, typer.Option(help="The folder to write, with keys and logs.")] = Path("federation"),
    out: Out = Path("runs"),
) -> None:
    """Run a federation on this machine only, to try it: a server and a process for each site, with TLS and keys."""
    from ..experiment import run_folder
    from ..experiment.config import load
    from ..flower.deploy.local import run_local_federation
    from ..flower.deploy.processes import signals_as_interrupt

    loaded = load(config, settings, grid=False)
    with signals_as_interrupt():
        run_local_federation(loaded, folder, out)
    print(f"results: {run_folder.path(out, loaded)}")
