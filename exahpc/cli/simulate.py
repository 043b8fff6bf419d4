"""`exahpc simulate`: a deployment under load and faults, by a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from exahpc.cli.common import notes
from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError
from exahpc.lab.simulate.presets import NODES, SCENARIOS, reference
from exahpc.lab.simulate.report import Figures, Report, Spread, encoded, plot
from exahpc.lab.simulate.run import simulate as run
from exahpc.lab.simulate.scenario import Scenario, load

_LINES = 12
"""Of the table by time, and of the decisions that are shown."""


def _listed(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Callback of --list."""
    if value:
        for name, scenario in SCENARIOS.items():
            click.echo(f"{name:14}{scenario.about}")
        ctx.exit()


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--scenario",
    "wanted",
    default="steady",
    show_default=True,
    metavar="NAME|FILE",
    help="What arrives and what breaks: a name of --list, or a TOML or JSON file.",
)
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_listed, help="The names.")
@click.option("--seed", type=int, help="Of everything random  [default: the scenario's]")
@click.option("--seconds", type=click.FloatRange(1), help="Virtual seconds  [default: the scenario's]")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Requests a second  [default: the scenario's]"
)
@click.option(
    "--nodes", type=click.IntRange(1, 4096), help=f"Without FILE: nodes of twelve replicas  [default: {NODES}]"
)
@click.option(
    "--latency",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="curve.json of `exahpc curve`: replicas are as fast as that  [default: the scenario's]",
)
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON, as in simulation.json.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for simulation.json, .png and .svg  [default: simulation-SCENARIO]",
)
def simulate(
    file: Path | None,
    wanted: str,
    seed: int | None,
    seconds: float | None,
    rate: float | None,
    nodes: int | None,
    latency: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """What would happen: the deployment FILE under load and faults, with emulated replicas.

    Entries, broker and agents decide with the code that runs in production; replicas follow a latency model, and
    nodes, Slurm and links are simulated. Without FILE it is a reference deployment. The same seed gives the same
    simulation.json.
    """
    if file is not None and nodes is not None:
        raise click.UsageError("--nodes is for the reference deployment: FILE says how many there are")
    scenario = _changed(_scenario(wanted), seed, seconds, rate, latency)
    deployment = _deployment(file) if file is not None else reference(scenario, nodes or NODES)
    target = output or Path(f"simulation-{scenario.name}")
    target.mkdir(parents=True, exist_ok=True)
    notes.print(
        f"{deployment.wanted_replicas:,} EMULATED replicas, {scenario.seconds:g} virtual seconds of "
        f"{scenario.name}, seed {scenario.seed}"
    )
    found = run(deployment, scenario)
    if not as_json:
        console = Console(highlight=False)
        console.print(_totals(found))
        console.print(_by_time(found))
    _tell_events(found)
    path = target / "simulation.json"
    path.write_bytes(encoded(found))
    made = [path]
    try:
        pictures = [target / "simulation.png", target / "simulation.svg"]
        plot(found, pictures)
    except ExahpcError as error:
        notes.print(str(error), markup=False)
    else:
        made += pictures
    click.echo(path.read_text() if as_json else "\n".join(map(str, made)), nl=not as_json)


def _scenario(wanted: str) -> Scenario:
    """Raises DeploymentError for what is neither a known name nor a good file."""
    if wanted in SCENARIOS:
        return SCENARIOS[wanted]
    path = Path(wanted)
    if not path.suffix and not path.exists():
        raise click.BadParameter(
            f"{wanted!r} is no scenario (--list names them) and no file", param_hint="--scenario"
        )
    return load(path)


def _changed(
    scenario: Scenario, seed: int | None, seconds: float | None, rate: float | None, latency: Path | None
) -> Scenario:
    """The scenario with what was said on the command line. Faults after its end are left out."""
    change = msgspec.structs.replace
    if seed is not None:
        scenario = change(scenario, seed=seed)
    if seconds is not None:
        kept = tuple(fault for fault in scenario.fault if fault.at <= seconds)
        scenario = change(scenario, seconds=seconds, fault=kept)
    if rate is not None:
        scenario = change(scenario, arrivals=change(scenario.arrivals, rate=rate))
    if latency is not None:
        from exahpc.lab.emulated.calibrate import calibrated

        scenario = change(scenario, replica=calibrated(latency))
    return scenario


def _deployment(file: Path) -> Deployment:
    return parse.load(file.read_text(), str(file))


def _totals(found: Report) -> Table:
    """A line for each figure, a column for each kind of request."""
    kinds = {"all": found.all, "short": found.short, "long": found.long, "not interrupted": found.undisturbed}
    kinds = {name: f for name, f in kinds.items() if name == "all" or 0 < f.requests < found.all.requests}
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in kinds:
        table.add_column(name, justify="right", no_wrap=True)
    lines: dict[str, Callable[[Figures], str]] = {
        "requests": lambda f: f"{f.requests:,}",
        "failed / 4xx / 503": lambda f: f"{f.failed:,} / {f.refused:,} / {f.no_room:,}",
        "interrupted": lambda f: f"{f.moved:,}",
        f"not within {found.scenario.slo.deadline:g} s": lambda f: f"{f.late:,}",
        "within the SLO, a second": lambda f: f"{f.goodput:,.1f}",
        "first token, P50 / P99 ms": lambda f: _both(f.first_token, 1e3),
        "between tokens, P50 / P99 ms": lambda f: _both(f.between, 1e3),
        "whole, P50 / P99 s": lambda f: _both(f.whole, 1),
    }
    for name, cell in lines.items():
        table.add_row(name, *map(cell, kinds.values()))
    table.caption = (
        f"{found.ejections} ejections, {found.rebuilds} rebuilds; {found.least_serving:.1%} of the replicas could "
        f"serve at the worst moment"
    )
    return table


def _both(spread: Spread, unit: float) -> str:
    return f"{unit * spread.p50:,.1f} / {unit * spread.p99:,.1f}" if spread.count else "-"


def _by_time(found: Report) -> Table:
    """Some lines of several windows each, with the worst of these."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("at s", "asked/s", "in SLO/s", "bad", "first P99 ms", "serving", "with traffic", "waiting"):
        table.add_column(title, justify="right", no_wrap=True)
    step = -(-len(found.windows) // _LINES)
    for start in range(0, len(found.windows), step):
        part = found.windows[start : start + step]
        seconds = len(part) * found.window_seconds
        table.add_row(
            f"{part[0].at:g}",
            f"{sum(window.requests for window in part) / seconds:,.1f}",
            f"{sum(window.goodput for window in part) / len(part):,.1f}",
            f"{sum(window.bad for window in part):,}",
            f"{1e3 * max(window.first_token.p99 for window in part):,.1f}",
            f"{min(window.serving for window in part):.1%}",
            f"{min(window.routed for window in part):.1%}",
            f"{max(window.waiting for window in part):,}",
        )
    table.caption = "of each line the worst window; serving: share of the replicas that could"
    return table


def _tell_events(found: Report) -> None:
    for event in found.faults:
        notes.print(f"{event.at:9.1f} s  {event.what}", markup=False)
    shown = found.decisions[:_LINES]
    for event in shown:
        notes.print(f"{event.at:9.1f} s  {event.what}", markup=False)
    if len(found.decisions) > len(shown):
        notes.print(f"... and {len(found.decisions) - len(shown)} more decisions, all in simulation.json")
