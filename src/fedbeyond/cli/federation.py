"""The commands for operators of a federation: parse, call, print. Flower's own commands can be used as well."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Out, Settings

federation = typer.Typer(help="Create the folder of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The folder that 'federation init' wrote.")]
Number = Annotated[str, typer.Argument(help="The run's number, printed by 'submit'.")]
AnyNumber = Annotated[str, typer.Argument(help="The run's number, printed by 'submit'; default: all runs.")]


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(federation, name="federation")
    for command in (serve, join, preflight, submit, status, logs, stop):
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
    """Write certificates, and a key and settings for each site; give sites/NAME to that site only."""
    from ..flower.deploy.operations import PROXY, FederationConfig
    from ..flower.deploy.operations import init as write_folder

    write_folder(folder, FederationConfig(address, tuple(site), tuple(guest), bind, deadline, tuple(classes)))
    print(f"server: fedbeyond serve {folder}")
    if address != bind:
        print(f"proxy:  nginx -p {folder / 'server'} -c {PROXY}, which forwards sites from {address} to {bind}")
    for name in (*site, *guest):
        print(
            f"{name}: give it {folder / 'sites' / name}; set its data in site.toml; start it with fedbeyond join {name}"
        )


def serve(folder: Folder) -> None:
    """Run a federation's server (a Flower SuperLink) until it is stopped."""
    from ..flower.deploy.operations import read_federation_config
    from ..flower.deploy.processes import running_server, signals_as_interrupt

    with signals_as_interrupt(), running_server(folder) as process:
        print(f"serving on {read_federation_config(folder).bind}; log: {folder / 'server' / 'server.log'}", flush=True)
        raise typer.Exit(process.wait())


def join(
    bundle: Annotated[Path, typer.Argument(help="The folder of the site, with site.toml and key.")],
    port: Annotated[int, typer.Option(help="A local port for the site's own processes; 0: any free port.")] = 0,
) -> None:
    """Take part as a site (a Flower SuperNode) until it is stopped."""
    from ..flower.deploy.processes import free_ports, run_site, signals_as_interrupt

    with signals_as_interrupt():
        raise typer.Exit(run_site(bundle, port or free_ports(1)[0], lambda line: print(line, flush=True)))


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

    number = send(folder, load(config, settings), out)
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

    loaded = load(config, settings)
    with signals_as_interrupt():
        run_local_federation(loaded, folder, out)
    print(f"results: {run_folder.path(out, loaded)}")
