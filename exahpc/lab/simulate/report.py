"""What a simulation gave, as one value: figures of the whole and by time, and what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from exahpc.lab.report import figure
from exahpc.lab.simulate.outcomes import COLUMNS, ENDINGS, Outcomes
from exahpc.lab.simulate.scenario import Scenario, Slo
from exahpc.lab.simulate.world import World

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Spread(msgspec.Struct, frozen=True):
    """Nearest-rank percentiles in seconds; zeros when there were none."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0


class Figures(msgspec.Struct, frozen=True):
    """Of requests that came in some time. first_token, between (on average of each answer), whole: of those that
    ended well; goodput: answers a second within the SLO; late: over the deadline, or not answered; failed,
    refused, no_room: 5xx, 4xx, 503; open: had not ended when the simulation did; moved: interrupted at least
    once."""

    requests: int
    done: int
    failed: int
    refused: int
    no_room: int
    open: int
    moved: int
    late: int
    goodput: float
    tokens_per_second: float
    first_token: Spread
    between: Spread
    whole: Spread


class Window(msgspec.Struct, frozen=True):
    """Requests that came in [at, at + the windows' length), and the fleet in it: shares of the replicas that the
    deployment wants, at the worst moment."""

    at: float
    requests: int
    bad: int
    goodput: float
    first_token: Spread
    between: Spread
    serving: float
    routed: float
    waiting: int


class Event(msgspec.Struct, frozen=True):
    """at: seconds after the warm-up."""

    at: float
    what: str


class Report(msgspec.Struct, frozen=True):
    """Times in seconds after the warm-up. emulated: what no real machine did; long: requests of at least
    routing.long_tokens, short: the others; undisturbed: those that were never interrupted; least_serving: share of
    the wanted replicas that truly could serve, at the worst moment; rebuilds: deeds that Slurm was asked for;
    ejections: replicas that health took out of traffic; versions: requests by the version that answered."""

    scenario: Scenario
    deployment: str
    emulated: str
    replicas: int
    entries: int
    all: Figures
    short: Figures
    long: Figures
    undisturbed: Figures
    least_serving: float
    ejections: int
    rebuilds: int
    versions: dict[str, int]
    windows: tuple[Window, ...]
    window_seconds: float
    faults: tuple[Event, ...]
    decisions: tuple[Event, ...]
    deeds: tuple[Event, ...]


EMULATED = (
    "replicas follow a latency model, and nodes, Slurm and links are simulated; entries, broker and agents decide "
    "with the code that runs in production"
)
MOST_EVENTS = 2000


class Table:
    """The columns of the outcomes as arrays."""

    def __init__(self, outcomes: Outcomes) -> None:
        rows: Floats = np.frombuffer(outcomes.rows, dtype=np.float64).reshape(-1, len(COLUMNS))
        self.arrived, self.first, self.between, self.whole = (rows[:, column] for column in range(4))
        self.size, self.new, self.moved = rows[:, 4] + rows[:, 5], rows[:, 5], rows[:, 6]
        self.ending = rows[:, 7].astype(np.int64)
        self.version = rows[:, 8].astype(np.int64)

    def good(self, slo: Slo) -> Mask:
        good: Mask = (self.ending == 0) & (self.first <= slo.first_token)
        good &= (self.between <= slo.between) & (self.whole <= slo.deadline)
        return good


def report(world: World, faults: Sequence[tuple[float, str]]) -> Report:
    """All figures of a world that has run."""
    scenario, table = world.scenario, Table(world.outcomes)
    begin = world.start + scenario.warm
    inside = (table.arrived >= begin) & (table.arrived < begin + scenario.seconds)
    long = table.size >= world.deployment.routing.long_tokens
    wanted = world.deployment.wanted_replicas
    outcomes = world.outcomes

    def figures(mask: Mask) -> Figures:
        return _figures(table, inside & mask, scenario.slo, scenario.seconds)

    def told(found: Sequence[tuple[float, str]]) -> tuple[Event, ...]:
        return tuple(Event(_round(at - begin), what) for at, what in found[:MOST_EVENTS])

    window = max(1.0, round(scenario.seconds / 120))
    everything = np.ones(len(table.arrived), dtype=np.bool_)
    samples = [sample for sample in world.samples if begin <= sample.at < begin + scenario.seconds]
    return Report(
        scenario=scenario,
        deployment=world.deployment.name,
        emulated=EMULATED,
        replicas=wanted,
        entries=world.entries,
        all=figures(everything),
        short=figures(~long),
        long=figures(long),
        undisturbed=figures(table.moved == 0),
        least_serving=_round(min((sample.serving for sample in samples), default=0) / wanted),
        ejections=sum(_ejects(what) for _, what in world.head.decisions),
        rebuilds=len(world.head.slurm.deeds),
        versions={
            name: int(np.count_nonzero(inside & (table.version == number)))
            for name, number in outcomes.versions.items()
        },
        windows=_windows(world, table, begin, window, wanted),
        window_seconds=window,
        faults=told(faults),
        decisions=told(world.head.decisions),
        deeds=told([(at, f"{kind} {key}") for at, kind, key in world.head.slurm.deeds]),
    )


def _ejects(what: str) -> bool:
    """A decision of health by which a replica lost its traffic."""
    return any(f"-> {state}:" in what for state in ("tripped", "silent"))


def _figures(table: Table, mask: Mask, slo: Slo, seconds: float) -> Figures:
    ending, done = table.ending[mask], mask & (table.ending == 0)
    counts = np.bincount(ending, minlength=len(ENDINGS))
    in_time = np.count_nonzero(table.whole[done] <= slo.deadline)
    return Figures(
        requests=int(np.count_nonzero(mask)),
        done=int(counts[0]),
        failed=int(counts[1]),
        refused=int(counts[2]),
        no_room=int(counts[3]),
        open=int(counts[4]),
        moved=int(np.count_nonzero(table.moved[mask])),
        late=int(np.count_nonzero(mask) - in_time),
        goodput=_round(np.count_nonzero(mask & table.good(slo)) / seconds),
        tokens_per_second=_round(float(table.new[done].sum()) / seconds),
        first_token=spread(table.first[done]),
        between=spread(table.between[done]),
        whole=spread(table.whole[done]),
    )


def _windows(world: World, table: Table, begin: float, length: float, wanted: int) -> tuple[Window, ...]:
    slo, found = world.scenario.slo, []
    good, done = table.good(slo), table.ending == 0
    number = np.floor((table.arrived - begin) / length)
    for index in range(max(1, int(np.ceil(world.scenario.seconds / length)))):
        mask, start = number == index, begin + index * length
        samples = [sample for sample in world.samples if start <= sample.at < start + length]
        requests = int(np.count_nonzero(mask))
        found.append(
            Window(
                at=_round(index * length),
                requests=requests,
                bad=requests - int(np.count_nonzero(mask & done)),
                goodput=_round(np.count_nonzero(mask & good) / length),
                first_token=spread(table.first[mask & done]),
                between=spread(table.between[mask & done]),
                serving=_round(min((sample.serving for sample in samples), default=0) / wanted),
                routed=_round(min((sample.routed for sample in samples), default=0) / wanted),
                waiting=max((sample.waiting for sample in samples), default=0),
            )
        )
    return tuple(found)


def spread(times: Floats) -> Spread:
    """Of those that are not negative."""
    times = np.sort(times[times >= 0])
    if not len(times):
        return Spread()

    def rank(share: float) -> float:
        return _round(float(times[max(0, int(np.ceil(share * len(times))) - 1)]))

    return Spread(len(times), rank(0.5), rank(0.99))


def _round(value: float) -> float:
    return round(float(value), 6)


def encoded(found: Report) -> bytes:
    """The JSON file: the same scenario and seed give the same bytes."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def plot(found: Report, paths: Sequence[Path]) -> None:
    """The picture, in the format of each path's suffix. Raises ExahpcError when matplotlib is missing."""
    windows = found.windows
    x = [window.at for window in windows]
    picture, (latency, rate, fleet) = figure(3, (8, 9))
    for get, name, colour in (("first_token", "first token", "tab:orange"), ("between", "between", "tab:green")):
        for rank, line in (("p50", "-"), ("p99", "--")):
            y: list[Any] = [1e3 * getattr(getattr(window, get), rank) for window in windows]
            latency.plot(x, y, line, color=colour, label=f"{name}, {rank.upper()}")
    latency.set_yscale("log")
    latency.set_ylabel("ms")
    rate.plot(x, [window.requests / found.window_seconds for window in windows], color="tab:gray", label="asked")
    rate.plot(x, [window.goodput for window in windows], color="tab:blue", label="answered within the SLO")
    rate.set_ylabel("requests/s")
    rate.set_ylim(bottom=0)
    fleet.plot(x, [100 * window.serving for window in windows], color="tab:purple", label="that could serve")
    fleet.plot(x, [100 * window.routed for window in windows], ":", color="tab:red", label="with traffic")
    fleet.set_ylabel(f"% of {found.replicas:,} replicas")
    fleet.set_xlabel("virtual seconds")
    for axes in (latency, rate, fleet):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        for event in found.faults:
            axes.axvline(event.at, color="tab:red", linewidth=1, linestyle="--")
    latency.set_title(f"{found.deployment}, scenario {found.scenario.name}: EMULATED replicas", fontsize="medium")
    for path in paths:
        picture.savefig(path, dpi=150)
