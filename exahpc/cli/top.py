"""`exahpc top`: the fleet in a terminal, as it is now."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator

import click
import msgspec
from rich.console import Console
from rich.live import Live

from exahpc.cli import top_view
from exahpc.cli.common import deployment_argument, opened
from exahpc.cli.top_view import Look, View
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError, LinkError
from exahpc.telemetry.glance import cells, glance
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask
from exahpc.wire.messages import BrokerToClient, FiguresQuery, FleetFigures, FleetMap, MapQuery

_EVERY = 5.0
"""The broker looks at its fleet every ten seconds, two after a failure."""
_PATIENCE = 5.0
_KEY = re.compile(r"\x1b[\[O](\d*[~A-Z])|(.)", re.DOTALL)
_ESCAPES = {"A": "k", "B": "j", "5~": "b", "6~": " ", "H": "g", "F": "G"}
"""Arrows and their like, as the letters that do the same."""


@click.command()
@deployment_argument()
@click.option("--once", is_flag=True, help="Print one look and end.")
@click.option("--json", "as_json", is_flag=True, help="One look as JSON, each replica by name; implies --once.")
def top(name: str, once: bool, as_json: bool) -> None:
    """Watch the fleet of NAME: a character for each replica, the load, latencies, alerts and batches.

    Keys: s, l, t, c, v show state, load, time to the first token, KV cache or version; w puts nodes that are not
    well first; arrows and Page Up, Page Down scroll; q ends. Works in 80 columns and without colours.
    """
    folder, deployment = opened(name)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_document(deployment, _look(folder))), indent=1))
        return
    console = Console(highlight=False)
    if once or not (sys.stdin.isatty() and console.is_terminal):
        view = View(deployment.name, deployment.served_name)
        console.print(top_view.page(view, _look(folder), console.width, None).shown)
        return
    with _keys() as pressed:
        _watch(folder, View(deployment.name, deployment.served_name), console, pressed)


def _look(folder: Folder) -> Look:
    """Raises LinkError."""
    head = folder.head()
    if head is None:
        raise LinkError(f"no broker of {folder.path.name} has published itself: is it up? (`exahpc status`)")

    def asked(query: MapQuery | FiguresQuery) -> object:
        return ask(folder.fleet_key(), head.address, query, BrokerToClient, _PATIENCE)

    fleet, figures = asked(MapQuery()), asked(FiguresQuery())
    if not isinstance(fleet, FleetMap) or not isinstance(figures, FleetFigures):
        raise LinkError(
            f"the broker of {folder.path.name} does not know these questions: it is of another version"
        )
    return Look(fleet, figures)


def _document(deployment: Deployment, look: Look) -> dict[str, object]:
    found = glance(deployment.name, deployment.served_name, look.fleet, look.figures)
    del found["cells"], found["unheard"]
    tasks: dict[str, dict[str, object]] = {}
    for task, cell in cells(look.fleet):
        key = f"{task.pool}/{task.first}"
        known = tasks.setdefault(key, msgspec.structs.asdict(task) | {"replicas": []})
        replicas = known["replicas"]
        assert isinstance(replicas, list)
        replicas.append(cell)
    return found | {"tasks": list(tasks.values())}


# --- a terminal -----------------------------------------------------------------------------------------------


class Pressed:
    """Keys of a terminal, one at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ahead: deque[str] = deque()

    def wait(self, seconds: float) -> str:
        """The next key; "" when none is pressed in time; "q" when the terminal is gone."""
        if not self._ahead and select.select([self._fd], [], [], seconds)[0]:
            text = os.read(self._fd, 256).decode(errors="replace")
            self._ahead += [_ESCAPES.get(found[1], "") if found[1] else found[2] for found in _KEY.finditer(text)]
            if not text:
                return "q"
        return self._ahead.popleft() if self._ahead else ""


@contextlib.contextmanager
def _keys() -> Iterator[Pressed]:
    """The terminal gives keys at once and shows none; Ctrl-C still interrupts."""
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        yield Pressed(0)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _watch(folder: Folder, view: View, console: Console, pressed: Pressed) -> None:
    look, said = _look(folder), ""
    due = time.monotonic() + _EVERY
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            page = top_view.page(view, look, console.width, console.height, said)
            live.update(page.shown, refresh=True)
            key = pressed.wait(max(0.0, due - time.monotonic()))
            if key == "q":
                return
            view = page.view.press(key)
            if time.monotonic() >= due:
                due = time.monotonic() + _EVERY
                try:
                    look, said = _look(folder), ""
                except ExahpcError as error:
                    said = str(error)
