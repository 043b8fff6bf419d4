"""Which replicas stand out from their peers. Pure.

Everything is relative: when a whole fleet slows down, or a model talks nonsense, nobody stands out. Two replicas
can be compared, but not told which of them is usual: with so few, none is taken out of traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exahpc.broker.illness import Replica, Sign
from exahpc.deployment.policy import Health
from exahpc.wire.messages import Service

TTFT_FLOOR, TBT_FLOOR = 0.02, 0.005
"""Seconds below which nobody minds how much faster the peers are: there it is noise that is compared."""
BUSY = 2.0
"""A replica that makes so many times the tokens of its peers is not slow but loaded, maybe with batch rows."""
BAD = 0.25
"""Share of failed or senseless answers by which a replica may exceed its peers."""


@dataclass(frozen=True, slots=True)
class Norm:
    """What is usual in a group: medians of its members' figures. size: members that were measured; rate: tokens
    per second; bad: share of failed or senseless answers."""

    size: int
    ttft: float
    tbt: float
    rate: float
    bad: float

    @staticmethod
    def of(members: Iterable[tuple[Service, float, float]]) -> Norm:
        """members: the figures, the token rate and the share of bad answers of each."""
        measured = list(members)
        ttfts = [service.ttft for service, _, _ in measured if service.ttft]
        tbts = [service.tbt for service, _, _ in measured if service.tbt]
        rate, bad = _median([rate for _, rate, _ in measured]), _median([bad for _, _, bad in measured])
        return Norm(len(measured), _median(ttfts), _median(tbts), rate, bad)

    def slower(self, service: Service, rate: float = 0.0) -> float:
        """How many times as long as usual this replica takes, by the worse of its two latencies; 0 for one that
        has so much more to do."""
        if self.rate and rate >= BUSY * self.rate:
            return 0.0
        first = service.ttft / max(self.ttft, TTFT_FLOOR) if self.ttft else 0.0
        between = service.tbt / max(self.tbt, TBT_FLOOR) if self.tbt else 0.0
        return max(first, between)

    def worse(self, bad: float) -> bool:
        """Whether so many of its answers are bad that it stands out."""
        return bad > self.bad + BAD

    def why(self, service: Service, bad: float) -> str:
        """The comparison in words."""
        if self.worse(bad):
            return f"{bad:.0%} of its answers are failed or senseless, of its peers' {self.bad:.0%}"
        return (
            f"{self.slower(service):.1f} times as slow as its peers: first token after {_time(service.ttft)} "
            f"(theirs {_time(self.ttft)}), {_time(service.tbt)} between tokens (theirs {_time(self.tbt)})"
        )


def compare(group: Sequence[Replica], keys: Health, room: int, now: float) -> list[tuple[Replica, Sign, str]]:
    """Judge replicas that do the same work. Returns what each that changes shows, and why.

    room: how many more may be tripped; of this group, never more than its own share, and never the last one: it
    takes three to tell which one is slow.
    """
    ready = [replica for replica in group if replica.told.phase == "ready"]
    fresh = [(replica, news) for replica in ready if (news := _news(replica, keys)) is not None]
    norm = Norm.of((news, r.told.token_rate, r.bad) for r, news in fresh if r.serving)
    signs: list[tuple[Replica, Sign, str]] = []
    hot: list[tuple[float, Replica]] = []
    for replica, news in fresh:
        slower, worse = norm.slower(news, replica.told.token_rate), norm.worse(replica.bad)
        warm = slower >= (1 + keys.hot) / 2 or worse
        replica.note(hot=norm.size >= 3 and (slower >= keys.hot or worse), warm=warm, now=now)
        match replica.state:
            case "probing" if warm:
                signs.append((replica, "hot", norm.why(news, replica.bad)))
            case "probing":
                signs.append((replica, "cool", "answered its probes well"))
            case "healthy" | "degraded" if replica.hot >= keys.windows:
                hot.append((slower, replica))
            case "healthy" if warm:
                signs.append((replica, "warm", norm.why(news, replica.bad)))
            case "degraded" if replica.cool >= keys.windows:
                signs.append((replica, "cool", "like its peers again"))
    room = min(room, allowed(keys, len(group)) - sum(replica.slow for replica in group))
    for _, replica in sorted(hot, key=lambda found: -found[0]):
        why = norm.why(replica.told.service, replica.bad)
        if room > 0:
            room -= 1
            signs.append((replica, "hot", why))
        elif replica.state == "healthy":
            signs.append((replica, "warm", f"{why}; not tripped, because too many are"))
    return signs


def allowed(keys: Health, replicas: int) -> int:
    """How many of so many replicas may be out of traffic for what their peers do better."""
    return max(1, int(keys.most_tripped * replicas))


def _news(replica: Replica, keys: Health) -> Service | None:
    """The figures to judge it by, without latencies where too few requests were measured; None when there is
    nothing new."""
    probing = replica.state == "probing"
    need = keys.probes if probing else max(1, keys.window_requests // 4)
    measured = replica.moves() and replica.told.service.samples >= need
    ended, bad = replica.answers()
    counted = ended >= need
    if counted:
        replica.bad = bad / ended
        replica.count()
    if not counted and (probing or not measured):
        return None
    return replica.told.service if measured else Service()


def _median(values: list[float]) -> float:
    """The lower one of two: the better half sets the norm. 0 of none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
