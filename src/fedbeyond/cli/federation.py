"""The commands of a federation's operators: parse, call, print. Thin over Flower's own, which work beside them."""

from pathlib import Path
from typing import Annotated

import typer

federation = typer.Typer(help="Make the folder of a federation on several machines.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The folder that 'federation init' wrote.")]
Number = Annotated[str, typer.Argument(help="The run's number, as 'submit' printed it; none: all of them.")]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="As in --set train.rounds=5.")]
Out = Annotated[Path, typer.Option(help="Where runs are kept.")]


def add(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.add_typer(federation, name="federation")
    for command in (serve, join, preflight, submit, status, logs, stop):
        app.command()(command)
    app.command("local-federation")(local_federation)


@federation.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    address: Annotated[str, typer.Option(help="host:port at which sites find the server.")],
    site: Annotated[list[str], typer.Option(help="A site that trains; give it once for each.")],
    guest: Annotated[list[str], typer.Option(help="A site that only judges the model.")] = [],  # noqa: B006
    classes: Annotated[list[str], typer.Option("--class", help="What images are of; once for each.")] = [],  # noqa: B006
    bind: Annotated[str, typer.Option(help="Where the server listens.")] = "127.0.0.1:8443",
    deadline: Annotated[float, typer.Option(help="Seconds that a site has for an answer.", min=1)] = 3600.0,
) -> None:
    """Write certificates, a key for each site and their settings; sites/NAME goes to that site, and nowhere else."""
    from ..flower.deploy.operations import PROXY, Charter
    from ..flower.deploy.operations import init as write_folder

    write_folder(folder, Charter(address, tuple(site), tuple(guest), bind, deadline, tuple(classes)))
    print(f"server: fedbeyond serve {folder}")
    if address != bind:
        print(f"proxy:  nginx -p {folder / 'server'} -c {PROXY}, which lets sites through from {address} to {bind}")
    for name in (*site, *guest):
        print(
            f"{name}: give it {folder / 'sites' / name}, where site.toml says what data it has; fedbeyond join {name}"
        )


def serve(folder: Folder) -> None:
    """Run a federation's server (a Flower SuperLink) until it is stopped."""
    from ..flower.deploy.operations import charter_of
    from ..flower.deploy.processes import hold, serving

    with hold(), serving(folder) as process:
        print(f"serving on {charter_of(folder).bind}; log: {folder / 'server' / 'server.log'}", flush=True)
        raise typer.Exit(process.wait())


def join(
    bundle: Annotated[Path, typer.Argument(help="The site's own folder, with site.toml and key.")],
    port: Annotated[int, typer.Option(help="A port of this machine for the site's own processes; 0: any.")] = 0,
) -> None:
    """Take part as a site (a Flower SuperNode) until it is stopped."""
    from ..flower.deploy.processes import free_ports, hold, take_part

    with hold():
        raise typer.Exit(take_part(bundle, port or free_ports(1)[0], lambda told: print(told, flush=True)))


def preflight(
    folder: Annotated[Path, typer.Argument(help="A site's own folder, or the server's that 'federation init' wrote.")],
    config: Annotated[Path | None, typer.Argument(help="A run: could it be played, what would leave a site?")] = None,
) -> None:
    """Look whether a site or the server is ready, and print what a run would send; exit code 1 if it is not."""
    from ..experiment.config import load
    from ..flower.deploy.preflight import preflight

    found = []
    for finding in preflight(folder, load(config) if config else None):
        found.append(finding.well)
        print(f"{'ok ' if finding.well else 'NOT'} {finding.what:9} {finding.told}")
    raise typer.Exit(0 if all(found) else 1)


def submit(
    folder: Folder,
    config: Annotated[Path, typer.Argument(help="A TOML file, as for 'run'.")],
    settings: Settings = [],  # noqa: B006
    out: Out = Path("runs"),
) -> None:
    """Start a run on a federation that is served; given again, it goes on where it was."""
    from ..experiment.config import load
    from ..flower.deploy.operations import submit as send

    number = send(folder, load(config, settings), out)
    print(f"run {number}; fedbeyond logs {folder} {number}")


def status(folder: Folder, number: Number = "") -> None:
    """Print what Flower says of runs."""
    from ..flower.deploy.operations import LINK, flwr

    print(flwr(folder, "list", LINK, *(("--run-id", number) if number else ())), end="")


def logs(folder: Folder, number: Number) -> None:
    """Print what a run has said."""
    from ..flower.deploy.operations import LINK, flwr

    print(flwr(folder, "log", number, LINK, "--show"), end="")


def stop(folder: Folder, number: Number) -> None:
    """Stop a run; what is finished of it is kept."""
    from ..flower.deploy.operations import LINK, flwr

    print(flwr(folder, "stop", number, LINK), end="")


def local_federation(
    config: Annotated[Path, typer.Argument(help="A TOML file, as for 'run'.")],
    settings: Settings = [],  # noqa: B006
    folder: Annotated[Path, typer.Option(help="The folder to write, with keys and logs.")] = Path("federation"),
    out: Out = Path("runs"),
) -> None:
    """Try a run as a federation on this machine alone: a server and a process for each site, with TLS and keys."""
    from ..experiment.config import load
    from ..experiment.runner import place
    from ..flower.deploy.local import try_out
    from ..flower.deploy.processes import hold

    asked = load(config, settings)
    with hold():
        try_out(asked, folder, out)
    print(f"results: {place(out, asked)}")
