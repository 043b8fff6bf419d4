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

    def add(command: F) -> F:
        for option in reversed(
            (
                click.option(
                    "--rate", type=click.FloatRange(0, min_open=True), help=f"Open loop: requests a second{unit}."
                ),
                click.option("--concurrency", type=click.IntRange(1), help=f"Closed loop: clients{unit}."),
                click.option(
                    "--arrivals",
                    type=click.Choice(["poisson", "fixed"]),
                    default="poisson",
                    show_default=True,
                    help="Of the open loop: independent, or evenly spaced.",
                ),
                click.option(
                    "--seconds", type=click.FloatRange(1), default=30.0, show_default=True, help="That count."
                ),
                click.option(
                    "--ramp", type=click.FloatRange(0), default=5.0, show_default=True, help="Seconds before that."
                ),
                click.option(
                    "--drain",
                    type=click.FloatRange(0),
                    default=60.0,
                    show_default=True,
                    help="Most seconds after that for answers to end.",
                ),
            )
        ):
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
