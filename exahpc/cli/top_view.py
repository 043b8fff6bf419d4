"""What `exahpc top` shows: a character for each replica, and the figures. Pure but for the clock."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from exahpc.telemetry.map import STATES, UNKNOWN, State
from exahpc.wire.messages import Figures, FleetFigures, FleetMap, MapTask

Mode = Literal["state", "load", "ttft", "kv", "version"]
_MODES: dict[str, Mode] = {"s": "state", "l": "load", "t": "ttft", "c": "kv", "v": "version"}
_SHOWN: dict[State, tuple[str, str]] = {
    "ready": ("·", "green"),
    "loading": ("l", "blue"),
    "draining": ("d", "cyan"),
    "degraded": ("!", "yellow"),
    "probing": ("p", "magenta"),
    "restarting": ("r", "yellow"),
    "tripped": ("T", "bold red"),
    "silent": ("?", "bold magenta"),
    "down": ("X", "bold red"),
    "missing": ("_", "dim"),
}
_WELL = {"ready", "loading", "draining"}
_HEAT = ("grey50", "cyan", "cyan", "green", "green", "yellow", "yellow", "dark_orange", "red", "bold red")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SLOWEST = 10.0  # seconds to the first token that are a 9
_MOST = 4  # alerts, and batches


class Look(NamedTuple):
    """What the broker told at about one time."""

    fleet: FleetMap
    figures: FleetFigures


class Page(NamedTuple):
    """view: scrolled no further than there are rows."""

    shown: RenderableType
    view: View


class _Node(NamedTuple):
    task: MapTask
    cells: bytes

    @property
    def states(self) -> list[State]:
        if not self.task.heard:
            return ["missing" if STATES[state] == "missing" else "silent" for state in self.cells[::4]]
        return [STATES[state] for state in self.cells[::4]]


@dataclass(frozen=True)
class View:
    """What the user wants to see. top: rows of the map that are scrolled away."""

    name: str
    model: str
    mode: Mode = "state"
    worst_first: bool = False
    top: int = 0

    def press(self, key: str) -> View:
        """After this key; one that means nothing changes nothing."""
        if key in _MODES:
            return replace(self, mode=_MODES[key])
        if key == "w":
            return replace(self, worst_first=not self.worst_first, top=0)
        if key in ("g", "G"):
            return replace(self, top=0 if key == "g" else 1 << 20)
        step = {"j": 1, "k": -1, " ": 10, "b": -10}.get(key, 0)
        return replace(self, top=max(0, self.top + step))


def page(view: View, look: Look, width: int, height: int | None, said: str = "") -> Page:
    """Lines of `width` characters. height: lines of the terminal; None shows everything. said: what went wrong."""
    above = [*_heading(view, look, said), *_figures(look.figures), Text()]
    below = [*_alerts(look.figures), *_batches(look.figures)]
    rows, legend = _map(view, look, width), _legend(view, look, width)
    if height is None:
        return Page(Group(*_cut([*above, *rows, *legend, *below], width)), view)
    below = [
        *legend,
        *below,
        Text("s l t c v: colour   w: worst first   arrows: scroll   q: end", "dim"),
    ]
    room = max(1, height - len(above) - len(below) - 1)
    first = min(view.top, max(0, len(rows) - room))
    shown = rows[first : first + room]
    hidden = len(rows) - len(shown)
    if hidden:
        above[-1] = Text(f"rows {first + 1} to {first + len(shown)} of {len(rows)}", "dim")
    return Page(Group(*_cut([*above, *shown, *below], width)), replace(view, top=first))


def _cut(lines: Iterable[Text], width: int) -> Iterable[Text]:
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
        yield line


# --- the figures ----------------------------------------------------------------------------------------------


def _heading(view: View, look: Look, said: str) -> list[Text]:
    age = max(0.0, time.time() - look.fleet.at)
    emulated = "  EMULATED" if view.model.startswith("emulated") else ""
    line = Text.assemble((view.name, "bold"), f"  {view.model}", (emulated, "yellow"), f"  {age:.0f} s ago")
    return [line, Text(said, "red")] if said else [line]


def _figures(figures: FleetFigures) -> list[Text]:
    fleet, clients = figures.rows[0], figures.entries
    colour = "green" if fleet.ready >= fleet.wanted else "yellow"
    first = Text.assemble(
        (f"{fleet.ready:,}/{fleet.wanted:,} ready", colour),
        (f"  {fleet.ill:,} ill" if fleet.ill else "", "yellow"),
        (f"  {fleet.silent:,} silent" if fleet.silent else "", "red"),
        f"  {fleet.running:,} run, {fleet.waiting:,} wait  {fleet.token_rate:,.0f} tokens/s",
    )
    recent = clients.recent or fleet.recent
    parts = [
        f"{name} p50 {_seconds(recent[measure].p50)} p99 {_seconds(recent[measure].p99)}"
        for name, measure in (("first token", "ttft"), ("answer", "e2e"))
        if measure in recent
    ]
    use = [
        f"{word} {100 * value:.0f} %"
        for word, value in (("busy", fleet.utilization), ("memory", fleet.memory), ("KV", fleet.kv))
        if value >= 0
    ]
    pools = [row for row in figures.rows if row.scope == "pool"]
    lines = [first, *(Text("  ".join(words)) for words in (parts, use) if words)]
    if len(pools) > 1:
        lines += [Text(_pool(row), "dim") for row in pools[:_MOST]]
    return lines


def _pool(row: Figures) -> str:
    return f"{row.name}: {row.ready:,}/{row.wanted:,} ready  {row.running:,} run  {row.token_rate:,.0f} tokens/s"


def _seconds(microseconds: float) -> str:
    seconds = microseconds / 1e6
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _alerts(figures: FleetFigures) -> list[Text]:
    loud = [alert for alert in figures.alerts if alert.state != "ok"]
    colours = {"firing": "bold red", "resolving": "red", "pending": "yellow"}
    return [Text(f"{alert.state} {alert.name}: {alert.text}", colours[alert.state]) for alert in loud[:_MOST]]


def _batches(figures: FleetFigures) -> list[Text]:
    lines = []
    for batch in figures.batches[:_MOST]:
        done = batch.ok + batch.failed
        share = f"{100 * done / batch.total:.0f} %" if batch.total else ""
        text = f"batch {batch.batch} {batch.state}  {done:,} of {batch.total:,} rows {share}"
        lines.append(Text.assemble(text, (f"  {batch.failed:,} failed" if batch.failed else "", "yellow")))
        lines += [Text(f"  {batch.note}", "yellow")] if batch.note else []
    return lines


# --- the map --------------------------------------------------------------------------------------------------


def _map(view: View, look: Look, width: int) -> list[Text]:
    """Nodes side by side, named where their order does not tell; pools begin on lines of their own."""
    nodes = _nodes(look.fleet)
    if view.worst_first:
        nodes.sort(key=lambda node: -sum(state not in _WELL for state in node.states))
    versions = sorted({task.version for task in look.fleet.tasks})
    label = max((len(node.task.node) for node in nodes), default=0)
    rows: list[Text] = []
    for pool in dict.fromkeys(node.task.pool for node in nodes):
        own = [node for node in nodes if node.task.pool == pool]
        each = max(len(node.states) for node in own) + 1
        across = max(1, width // (label + 1 + each) if view.worst_first else (width - label - 1) // each)
        if len({task.pool for task in look.fleet.tasks}) > 1:
            rows.append(Text(pool, "bold"))
        for start in range(0, len(own), across):
            line = Text()
            for node in own[start : start + across]:
                if view.worst_first or node is own[start]:
                    line.append(f"{node.task.node:<{label}} ", "dim")
                for glyph, colour in _glyphs(view.mode, node, versions):
                    line.append(glyph, colour)
                line.append(" " * (each - len(node.states)))
            line.rstrip()
            rows.append(line)
    return rows


def _nodes(fleet: FleetMap) -> list[_Node]:
    nodes, at = [], 0
    for task in fleet.tasks:
        nodes.append(_Node(task, fleet.cells[at : at + 4 * task.count]))
        at += 4 * task.count
    return nodes


def _glyphs(mode: Mode, node: _Node, versions: list[str]) -> Iterable[tuple[str, str]]:
    number = versions.index(node.task.version) % len(_LETTERS)
    for index, state in enumerate(node.states):
        _, load, kv, ttft = node.cells[4 * index : 4 * index + 4]
        if mode == "state" or state not in ("ready", "degraded"):
            yield _SHOWN[state]
        elif mode == "version":
            yield _LETTERS[number], _HEAT[(3 * number + 1) % len(_HEAT)]
        elif mode == "load":
            yield ("+", "bold red") if load > 100 else _digit(load / 100)
        elif mode == "kv":
            yield (" ", "") if kv == UNKNOWN else _digit(kv / 100)
        else:
            yield (" ", "") if ttft == UNKNOWN else _digit(ttft / (20 * math.log2(1 + 10 * _SLOWEST)))


def _digit(share: float) -> tuple[str, str]:
    number = min(9, int(10 * share))
    return str(number), _HEAT[number]


def _legend(view: View, look: Look, width: int) -> list[Text]:
    counts = Counter(state for node in _nodes(look.fleet) for state in node.states)
    lines = [Text()]
    for state, (glyph, colour) in _SHOWN.items():
        if counts[state]:
            part = Text.assemble((glyph, colour), f" {state} {counts[state]:,}  ")
            if len(lines[-1]) + len(part) - 2 > width:
                lines.append(Text())
            lines[-1].append_text(part)
    if view.mode == "state":
        return lines
    meaning = {
        "load": "0 to 9: tenths of the sequences that a replica runs at once; +: more wait",
        "kv": "0 to 9: tenths of the KV cache in use",
        "ttft": f"0 to 9: time to the first token, up to {_SLOWEST:.0f} s, logarithmic",
        "version": "  ".join(
            f"{_LETTERS[at % len(_LETTERS)]} {version or 'first'}"
            for at, version in enumerate(sorted({task.version for task in look.fleet.tasks}))
        ),
    }[view.mode]
    return [*lines, Text(meaning, "dim")]
