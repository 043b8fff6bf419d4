"""Which living replicas are too ill for traffic, and what is done about them. Pure: (event, now) -> orders.

Two kinds of illness. A *silent* replica has work in flight and yields neither a token nor a step: it is told by
its own beats alone, at once, and restarted. A *slow* one, or one whose answers are bad, is told by comparison with
its peers, every `health.window_seconds`: less traffic, then none, then a few probes, then a restart, then another
node.

Rather one wrong ejection than a missed one, but never a cascade: slow ones only up to a share of the fleet and of
their group; restarts from a bucket; nothing at all is done about silence when half of the fleet is silent: then it
is the network or the file system. Whoever is not heard keeps its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from exahpc.broker.bucket import Bucket
from exahpc.broker.illness import WEIGHTS, HandBack, Order, Replica, Restart, Sign, State, Weigh, carried
from exahpc.broker.peers import allowed, compare
from exahpc.deployment.policy import Health as Keys
from exahpc.wire.messages import ReplicaState

MOST_TRIPS = 3  # in a row; then it is restarted, and when that does not help either, the node is suspect
LONGEST_REST = 10  # times rest_seconds; whoever was healthy for so long begins anew
AGAIN_SECONDS = 20.0  # after which an order that shows no effect is given again
BLIND = 3  # so many silent replicas may make half of the fleet
IDLE = 0.02  # utilization below which accelerators do nothing


@dataclass(slots=True)
class _Agent:
    """group, traffic: see `Health.up`; present: it is alive."""

    group: Hashable
    traffic: Hashable
    node: str
    present: bool = True
    replicas: dict[int, Replica] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        return sum(replica.told.phase == "ready" for replica in self.replicas.values())


class Health:
    """State of all replicas. Times in seconds of the fleet's clock."""

    def __init__(
        self,
        keys: Keys,
        replicas: int,
        now: float,
        *,
        hand_back: bool = True,
        before: Iterable[tuple[str, int, int, float, bool]] = (),
    ) -> None:
        """replicas: of the whole deployment; hand_back: a task can run on another node; before: (agent, slot,
        incarnation, weight, probe) of the replicas that the predecessor had lowered."""
        self._keys = keys
        self._bucket = Bucket.of_fleet(replicas, now)
        self._hand_back = hand_back
        self._before: dict[tuple[str, int], tuple[int, State]] = {
            (key, slot): (incarnation, carried(weight, probe)) for key, slot, incarnation, weight, probe in before
        }
        self._agents: dict[str, _Agent] = {}
        self._ill: dict[tuple[str, int], Replica] = {}
        self._quiet: set[tuple[str, int]] = set()  # no step for half of the allowed silence
        self._ready = 0
        self._judged = now

    # --- events ----------------------------------------------------------------------------------------------

    def up(self, key: str, group: Hashable, traffic: Hashable, node: str) -> None:
        """An agent is alive. What was known of its replicas on another node does not count.

        group: agents whose replicas can be compared; traffic: agents whose replicas can stand in for each other.
        """
        self.down(key)
        agent = self._agents.get(key)
        if agent is None or agent.node != node:
            for slot in agent.replicas if agent else ():
                self._ill.pop((key, slot), None)
            agent = self._agents[key] = _Agent(group, traffic, node)
        agent.group, agent.traffic, agent.present = group, traffic, True
        self._ready += agent.ready

    def down(self, key: str) -> None:
        """An agent works no more: until it is back, its replicas count for nothing."""
        agent = self._agents.get(key)
        if agent is not None and agent.present:
            agent.present = False
            self._ready -= agent.ready
            self._quiet -= {(key, slot) for slot in agent.replicas}

    def heard(self, key: str, told: Iterable[ReplicaState], now: float) -> list[Order]:
        """News of an agent's replicas."""
        agent = self._agents.get(key)
        if agent is None:
            return []
        orders: list[Order] = []
        self._ready -= agent.ready
        for state in told:
            replica = agent.replicas.get(state.slot)
            if replica is None:
                replica = agent.replicas[state.slot] = self._met(key, state, now)
            elif state.incarnation > replica.told.incarnation:
                replica.reborn(state)
                if replica.state != "healthy":
                    orders += self._step(replica, "reborn", "a new incarnation", now)
            elif state.incarnation == replica.told.incarnation:
                replica.told = state
            else:
                continue  # the last words of an older one
            orders += self._listen(replica, now)
        self._ready += agent.ready
        return orders

    def tick(self, now: float) -> list[Order]:
        """Call about once a second."""
        orders: list[Order] = []
        for replica in list(self._ill.values()):
            if self._agents[replica.key].present and replica.told.phase == "ready":
                orders += self._wait(replica, now)
        if now - self._judged >= self._keys.window_seconds:
            self._judged = now
            orders += self._judge(now)
        return orders

    # --- what others read ------------------------------------------------------------------------------------

    def ill(self, key: str) -> list[tuple[int, str, str]]:
        """(slot, state, why) of the replicas of an agent that are not healthy."""
        agent = self._agents.get(key)
        replicas = agent.replicas.values() if agent else ()
        return [(r.told.slot, r.state, r.why) for r in replicas if r.state != "healthy"]

    def notes(self) -> list[str]:
        """For `status`."""
        counts = Counter(replica.state for replica in self._ill.values())
        told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        notes = [f"health: {told} of {self._ready} replicas"] if told else []
        if self._blind:
            notes.append(
                f"{len(self._quiet)} of {self._ready} replicas have work and do nothing: nothing is done about so "
                "many at once, look at the network and the file system"
            )
        return notes

    # --- silence ---------------------------------------------------------------------------------------------

    @property
    def _blind(self) -> bool:
        return len(self._quiet) >= BLIND and 2 * len(self._quiet) > self._ready

    def _listen(self, replica: Replica, now: float) -> list[Order]:
        told, silence = replica.told, self._keys.silence_seconds
        name = (replica.key, told.slot)
        quiet = told.phase == "ready" and told.step_age >= silence / 2
        (self._quiet.add if quiet else self._quiet.discard)(name)
        if told.phase != "ready":
            return []
        replica.slow &= replica.state != "healthy"
        if replica.state == "silent" and not quiet:
            return self._step(replica, "moved", "was silent, computes again", now)
        if not quiet or replica.state == "restarting" or self._blind:
            return []
        busy = told.service.utilization
        why = f"no step for {told.step_age:.0f} s with {told.running} requests running, {told.waiting} waiting"
        why += f", its accelerators {busy:.0%} busy" if busy >= 0 else ""
        if told.step_age < silence and not 0 <= busy <= IDLE:
            return self._step(replica, "warm", why, now) if replica.state == "healthy" else []
        orders = self._step(replica, "silent", why, now) if replica.state != "silent" else []
        return orders + self._wait(replica, now)

    # --- time ------------------------------------------------------------------------------------------------

    def _wait(self, replica: Replica, now: float) -> list[Order]:
        """What is due about an ill replica."""
        match replica.state:
            case "silent" if replica.told.step_age >= self._keys.silence_seconds and not self._blind:
                return self._restart(replica, now)
            case "restarting" if now - replica.since >= AGAIN_SECONDS:
                return self._restart(replica, now)
            case "tripped" if replica.trips >= MOST_TRIPS:
                return self._restart(replica, now)
            case "tripped" if now >= replica.until:
                replica.count()
                return self._step(replica, "rested", f"is tried again ({replica.why})", now)
            case "degraded" if now - replica.judged >= self._keys.rest_seconds:
                return self._step(replica, "cool", "nothing more was heard of it", now)
        return []

    def _restart(self, replica: Replica, now: float) -> list[Order]:
        """Order its end, when it is its turn. A restart that did not help makes the node suspect."""
        suspect = replica.slow and replica.restarted and self._hand_back
        agent = self._agents[replica.key]
        if not self._bucket.take(now, len(agent.replicas) if suspect else 1):
            return []
        replica.restarted |= replica.slow
        why = replica.why
        orders = self._step(replica, "restart", why, now)
        if suspect:
            return [*orders, HandBack(replica.key, f"{replica} is ill again after a restart: {why}")]
        return [*orders, Restart(replica.key, replica.told.slot, replica.told.incarnation, why)]

    # --- comparison ------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> list[Order]:
        groups: dict[Hashable, list[Replica]] = {}
        for agent in self._agents.values():
            if agent.present:
                group = groups.setdefault(agent.group, [])
                group += (r for r in agent.replicas.values() if r.slow or r.told.phase == "ready")
        everyone = [replica for group in groups.values() for replica in group]
        room = allowed(self._keys, len(everyone)) - sum(replica.slow for replica in everyone)
        orders: list[Order] = []
        for group in groups.values():
            for replica, sign, why in compare(group, self._keys, room, now):
                if sign == "hot":
                    room -= not replica.slow
                    self._trip(replica, now)
                elif replica.state == "probing":
                    replica.slow = False
                orders += self._step(replica, sign, why, now)
        return orders

    def _trip(self, replica: Replica, now: float) -> None:
        rest = self._keys.rest_seconds
        if replica.serving and now - replica.until >= LONGEST_REST * rest:
            replica.trips, replica.restarted = 0, False
        replica.trips += 1
        replica.slow, replica.hot = True, 0
        replica.until = now + rest * min(LONGEST_REST, 2 ** (replica.trips - 1))

    # --- inner -----------------------------------------------------------------------------------------------

    def _met(self, key: str, told: ReplicaState, now: float) -> Replica:
        """A replica that was not known. One that a predecessor had out of traffic stays so, and rests anew."""
        replica = Replica.of(key, told, now)
        incarnation, state = self._before.pop((key, told.slot), (0, replica.state))
        if incarnation == told.incarnation and state != "healthy":
            replica.state, replica.why = state, "it was when the broker was restarted"
            replica.slow = state == "tripped"
            replica.until = now + self._keys.rest_seconds
            self._ill[key, told.slot] = replica
        return replica

    def _step(self, replica: Replica, sign: Sign, why: str, now: float) -> list[Order]:
        before = replica.state
        replica.step(sign, why, now)
        name = (replica.key, replica.told.slot)
        if replica.state == "healthy":
            self._ill.pop(name, None)
        else:
            self._ill[name] = replica
        weight = WEIGHTS[replica.state]
        if replica.state in ("silent", "restarting") and not self._others(replica):
            weight = WEIGHTS["degraded"]  # better a doubtful replica than none
        what = f"replica {replica}: {before} -> {replica.state}: {why}"
        probe = replica.state == "probing"
        return [Weigh(replica.key, replica.told.slot, replica.told.incarnation, weight, probe, what)]

    def _others(self, replica: Replica) -> bool:
        """Whether another one can take its traffic."""
        traffic = self._agents[replica.key].traffic
        return any(
            other.serving and other is not replica
            for agent in self._agents.values()
            if agent.present and agent.traffic == traffic
            for other in agent.replicas.values()
        )
