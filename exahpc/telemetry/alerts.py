"""Six rules that look at the fleet's figures, and say when something is wrong for long enough. Pure.

    ok --over--> pending --over for hold_seconds--> firing --under for resolve_seconds--> ok
       <-under--                                          <--over again--- (resolving)

One message when a rule begins to fire, one when it is over. A rule resolves only below a lower line than the one
that it fires at (for live replicas: above a higher one), so that a value that plays around the line is one alert.
A value that is not known changes nothing, and counts as no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from exahpc.deployment.policy import Alerts
from exahpc.wire.messages import Alert

State = Literal["ok", "pending", "firing", "resolving"]
LONGEST_STEP = 30.0
"""Between two looks more time than this counts as this: who was stopped has not watched."""


@dataclass(frozen=True)
class Rule:
    """Fires at `threshold`, resolves beyond `clear`. below: low values are the bad ones; text: with {value} and
    {threshold}; percent: values are shares."""

    name: str
    threshold: float
    clear: float
    text: str
    below: bool = False
    percent: bool = True

    def over(self, value: float) -> bool:
        return value <= self.threshold if self.below else value >= self.threshold

    def under(self, value: float) -> bool:
        return value > self.clear if self.below else value < self.clear

    def told(self, value: float | None) -> str:
        def shown(number: float) -> str:
            return f"{100 * number:.3g} %" if self.percent else f"{number:.3g}"

        return self.text.format(value="?" if value is None else shown(value), threshold=shown(self.threshold))


def rules(settings: Alerts) -> list[Rule]:
    """Those that are not switched off by a threshold of 0."""

    def high(name: str, threshold: float, text: str, clear: float = 0.9, *, percent: bool = True) -> Rule:
        return Rule(name, threshold, clear * threshold, text, percent=percent)

    live = settings.replicas
    made = [
        high("error_rate", settings.error_rate, "{value} of requests fail (limit {threshold})", 0.8),
        high(
            "p99",
            settings.p99_seconds,
            "P99 of the time to the first token is {value} s (limit {threshold} s)",
            percent=False,
        ),
        high("utilization", settings.utilization, "accelerators are {value} busy (limit {threshold})", 0.95),
        high("memory", settings.memory, "accelerator memory is {value} full (limit {threshold})", 0.98),
        high("queue", settings.queue, "{value} of the room for waiting requests is taken (limit {threshold})"),
        Rule(
            "replicas",
            live,
            (1 + live) / 2,
            "{value} of the wanted replicas are ready (limit {threshold})",
            below=True,
        ),
    ]
    return [rule for rule in made if rule.threshold > 0]


class Told(msgspec.Struct, frozen=True):
    """A message about one rule, for hooks and logs. at: Unix time."""

    alert: str
    state: Literal["firing", "resolved"]
    text: str
    value: float | None
    threshold: float
    at: float


@dataclass
class _Watch:
    """spent: seconds of what the state waits for; since: when the state began."""

    rule: Rule
    since: float
    state: State = "ok"
    spent: float = 0.0
    value: float | None = None

    def enter(self, state: State, now: float) -> None:
        self.state, self.since, self.spent = state, now, 0.0


class Watchman:
    """All rules of one deployment. firing: names of those that an earlier broker saw firing."""

    def __init__(self, settings: Alerts, now: float, firing: Iterable[str] = ()) -> None:
        self._hold, self._resolve = settings.hold_seconds, settings.resolve_seconds
        before = set(firing)
        self._watches = {
            rule.name: _Watch(rule, now, "firing" if rule.name in before else "ok") for rule in rules(settings)
        }
        self._at = now

    @property
    def firing(self) -> list[str]:
        return [name for name, watch in self._watches.items() if watch.state in ("firing", "resolving")]

    def look(self, values: Mapping[str, float | None], now: float) -> list[Told]:
        """Call every few seconds. values: by rule, None where nobody can tell."""
        step, self._at = min(LONGEST_STEP, max(0.0, now - self._at)), now
        told = []
        for name, watch in self._watches.items():
            value = values.get(name)
            if value is None:
                continue
            watch.value = value
            word = self._turn(watch, value, step, now)
            if word is not None:
                told.append(Told(name, word, watch.rule.told(value), value, watch.rule.threshold, now))
        return told

    def _turn(self, watch: _Watch, value: float, step: float, now: float) -> Literal["firing", "resolved"] | None:
        rule = watch.rule
        match watch.state:
            case "ok" if rule.over(value):
                watch.enter("pending", now)
            case "pending" if not rule.over(value):
                watch.enter("ok", now)
            case "pending":
                watch.spent += step
            case "firing" if rule.under(value):
                watch.enter("resolving", now)
            case "resolving" if not rule.under(value):
                watch.enter("firing", now)
            case "resolving":
                watch.spent += step
        if watch.state == "pending" and watch.spent >= self._hold:
            watch.enter("firing", now)
            return "firing"
        if watch.state == "resolving" and watch.spent >= self._resolve:
            watch.enter("ok", now)
            return "resolved"
        return None

    def alerts(self, now: float) -> list[Alert]:
        """Where every rule stands."""
        return [
            Alert(
                name, watch.state, watch.value, watch.rule.threshold, round(now - watch.since, 1),
                watch.rule.told(watch.value),
            )
            for name, watch in self._watches.items()
        ]  # fmt: skip
