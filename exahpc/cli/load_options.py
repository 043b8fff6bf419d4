"""Options of the commands that put load on a deployment: bench, ladder, sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

from exahpc.errors import DeploymentError
from exahpc.lab.bench import lengths, wish
from exahpc.lab.bench.wish import Load

F = TypeVar("F", bound=Callable[..., Any])


def lengths_option(flag: str, default: str, text: str) -> Callable[[F], F]:
    """A distribution of lengths."""
    return click.option(flag, default=default, show_default=True, metavar="LENGTHS", callback=_lengths, help=text)


def slo_option() -> Callable[[F], F]:
    return click.option(
        "--slo",
        default=None,
        metavar="ttft=T,tbt=T,e2e=T",
        callback=_slo,
        help="Times within which an answer is good: first token, between tokens, whole. 500ms, 0.5 or 2s.",
    )


def load_options(unit: str = "") -> Callable[[F], F]:
    """Rate or concurrency, and how long. unit: of which there are several, for example " of each node"."""
    rate = click.FloatRange(0, min_open=True)
    kinds = click.Choice(["poisson", "fixed"])
    return _all(
        click.option("--rate", type=rate, help=f"Open loop: requests a second{unit}."),
        click.option("--concurrency", type=click.IntRange(1), help=f"Closed loop: clients{unit}."),
        _with_default("--arrivals", "poisson", kinds, "Of the open loop: independent, or evenly spaced."),
        time_options(),
    )


def time_options() -> Callable[[F], F]:
    """How long one measurement takes."""
    return _all(
        _with_default("--seconds", 30.0, click.FloatRange(1), "That count."),
        _with_default("--ramp", 5.0, click.FloatRange(0), "Seconds before that."),
        _with_default("--drain", 60.0, click.FloatRange(0), "Most seconds after that for answers to end."),
    )


def trial_options(unit: str) -> Callable[[F], F]:
    """Of commands that measure several deployments, each a `unit`, in the same way."""
    return _all(
        lengths_option("--prompt", "128", "Tokens of each prompt, as of `exahpc bench`."),
        lengths_option("--new", "64", "Most tokens of each answer, in the same forms."),
        slo_option(),
        _with_default("--seed", 1, click.INT, "Of everything random."),
        click.option(
            "--processes", type=click.IntRange(1, 256), help="Of the client  [default: as the load needs]"
        ),
        click.option(
            "--timeout", type=click.FloatRange(1), help=f"Most seconds until a {unit} is ready  [default: none]"
        ),
    )


def _with_default(flag: str, default: object, kind: click.ParamType[Any], text: str) -> Callable[[F], F]:
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    """In the order in which --help shall show them."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def load_of(rate: float | None, concurrency: int | None, arrivals: Literal["poisson", "fixed"]) -> Load:
    """Raises UsageError unless exactly one of both was given."""
    if (rate is None) == (concurrency is None):
        raise click.UsageError("how much load? Give --rate (open loop) or --concurrency (closed loop)")
    return Load(concurrency or 0, rate or 0.0, arrivals)


def _lengths(ctx: click.Context, param: click.Parameter, value: str) -> lengths.Lengths:
    try:
        return lengths.parsed(value)
    except DeploymentError as error:
        raise click.BadParameter(str(error)) from None


def _slo(ctx: click.Context, param: click.Parameter, value: str | None) -> wish.Slo:
    try:
        return wish.slo(value) if value else wish.Slo()
    except DeploymentError as error:
        raise click.BadParameter(str(error)) from None
