"""The command line: parse, call, print. What the commands do lies in the rooms below."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import click

import exahpc
from exahpc import output
from exahpc.cli import exits
from exahpc.cli.examples import shown
from exahpc.cli.signals import Terminated
from exahpc.errors import ExahpcError

_COMMANDS = {
    "plan": "exahpc.cli.plan:plan",
    "doctor": "exahpc.cli.doctor:doctor",
    "up": "exahpc.cli.up:up",
    "status": "exahpc.cli.status:status",
    "url": "exahpc.cli.access:url",
    "key": "exahpc.cli.access:key",
    "tunnel": "exahpc.cli.tunnel:tunnel",
    "chat": "exahpc.cli.chat:chat",
    "logs": "exahpc.cli.logs:logs",
    "top": "exahpc.cli.top:top",
    "history": "exahpc.cli.history:history",
    "down": "exahpc.cli.down:down",
    "watch": "exahpc.cli.watch:watch",
    "batch": "exahpc.cli.batch:batch",
    "model": "exahpc.cli.model:model",
    "pack": "exahpc.cli.pack:pack",
    "completion": "exahpc.cli.completion:completion",
    "rollout": "exahpc.cli.rollout:rollout",
    "curve": "exahpc.cli.curve:curve",
    "bench": "exahpc.cli.bench:bench",
    "ladder": "exahpc.cli.ladder:ladder",
    "sweep": "exahpc.cli.sweep:sweep",
    "simulate": "exahpc.cli.simulate:simulate",
}


class Commands(click.Group):
    """Loads a command's module only when it is used, and turns our errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return shown(command, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ExahpcError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt as stopped:  # click would end with 1, which says that something failed
            click.echo("stopped", err=True)
            sys.exit(exits.TERMINATED if isinstance(stopped, Terminated) else exits.INTERRUPTED)
        except BrokenPipeError:  # click ends quietly on this one
            raise
        except OSError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


def version(package: Path = Path(exahpc.__file__).parent) -> str:
    """Ours, and whether this interpreter takes compiled modules (packaging/compile.py)."""
    compiled = any((package / f"entry/ledger{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    return exahpc.__version__ + (" (compiled)" if compiled else "")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version(), prog_name="exahpc")
def main() -> None:
    """Serve large language models on a Slurm supercomputer, or on this machine.

    Deployments live in $EXAHPC_HOME (default ~/.exahpc), one folder each. NAME is a deployment's name, or the path
    of its folder.
    """
    output.whole()
