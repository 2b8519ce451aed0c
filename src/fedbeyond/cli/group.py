"""The group of all commands: how one ends that is stopped, and what to write for an option that does not exist."""

import signal
import sys
from dataclasses import fields
from typing import Any

import typer
from click import NoSuchOption
from typer.core import TyperGroup

RESUMED = ("run", "bench", "local-federation")  # commands that continue where they were stopped


class Commands(TyperGroup):
    """The commands. Each ends in order, with its display and its processes, on Ctrl-C and on SIGTERM."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if it is stopped, print one line and exit as a shell expects it."""

        def stop(number: int, frame: object) -> None:
            raise KeyboardInterrupt(number)

        before = signal.signal(signal.SIGTERM, stop)
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            key = as_setting(error.option_name)
            if key and error.ctx and any(param.name == "settings" for param in error.ctx.command.params):
                error.message, error.possibilities = f"{error.message}; it is a setting: --set {key}=...", None
            raise
        except KeyboardInterrupt as stopped:
            kept = "finished rounds are kept: " if ctx.invoked_subcommand in RESUMED else ""
            again = "to resume" if kept else "to start it again"
            print(f"\nstopped; {kept}give the same command again {again}", file=sys.stderr)
            raise typer.Exit(128 + (signal.SIGTERM if stopped.args == (signal.SIGTERM,) else signal.SIGINT)) from None
        finally:
            signal.signal(signal.SIGTERM, before)


def as_setting(option: str) -> str:
    """Return the key of the configuration that a user meant by an option such as --rounds; empty if there is none."""
    from ..experiment.config import Bench, Config, Train

    keys = {"lr": "optimizer.lr"}
    for prefix, part in (("bench.", Bench), ("train.", Train), ("", Config)):
        keys |= {field.name: f"{prefix}{field.name}" for field in fields(part)}
    return keys.get(option.lstrip("-").replace("-", "_"), "")
