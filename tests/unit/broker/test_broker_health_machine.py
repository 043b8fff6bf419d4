"""Whatever replicas tell in whatever order: the cap holds, somebody serves, and there is always a way back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from exahpc.broker.health import Health
from exahpc.broker.illness import WEIGHTS, HandBack, Order, Restart, Weigh
from exahpc.deployment.policy import Health as Keys
from exahpc.wire.messages import ReplicaPhase, ReplicaState, Service

KEYS = Keys(window_requests=8, rest_seconds=20.0, most_tripped=0.2)
TASKS, EACH = 5, 3
SLOTS = [(task, task * EACH + number) for task in range(TASKS) for number in range(EACH)]


class HealthMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.health = Health(KEYS, len(SLOTS), self.now)
        self.states: dict[int, ReplicaState] = {}
        self.routes: dict[int, tuple[int, float]] = {}  # slot -> (incarnation, weight), as the fleet keeps it
        self.present: set[int] = set()
        self.slow: set[int] = set()  # out for what their peers do better, by the orders given
        for task in range(TASKS):
            self.comes(task)
        for task, slot in SLOTS:
            self.tell(task, slot)

    # --- the world ---

    def tell(self, task: int, slot: int, **changes: object) -> None:
        old = self.states.get(slot, ReplicaState(slot, 1, "ready"))
        fields: dict[str, object] = {
            "slot": slot, "incarnation": old.incarnation, "phase": old.phase,
            "tokens": old.tokens + 10, "service": old.service, **changes,
        }  # fmt: skip
        state = ReplicaState(**fields)  # type: ignore[arg-type]
        self.states[slot] = state
        if task in self.present:
            self.obey(self.health.heard(f"a/{task}", [state], self.now))

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Weigh():
                    assert order.weight in WEIGHTS.values()
                    assert self.states[order.slot].incarnation == order.incarnation
                    self.routes[order.slot] = (order.incarnation, order.weight)
                    if "-> tripped" in order.what:
                        self.slow.add(order.slot)
                        assert self.others(order.slot), "the last one was tripped"
                    elif "-> healthy" in order.what or "-> silent" in order.what:
                        self.slow.discard(order.slot)
                case Restart():
                    state = self.states[order.slot]
                    assert (state.incarnation, state.phase) == (order.incarnation, "ready")
                case HandBack():
                    assert order.key

    def weight(self, slot: int) -> float:
        incarnation, weight = self.routes.get(slot, (0, 1.0))
        return weight if incarnation == self.states[slot].incarnation else 1.0

    def serves(self, task: int, slot: int) -> bool:
        return task in self.present and self.states[slot].phase == "ready" and self.weight(slot) > 0

    def others(self, slot: int) -> bool:
        return any(self.serves(task, other) for task, other in SLOTS if other != slot)

    # --- what happens ---

    @rule(task=st.integers(0, TASKS - 1))
    def comes(self, task: int) -> None:
        self.health.up(f"a/{task}", "group", "traffic", f"n{task}")
        self.present.add(task)
        states = [self.states[slot] for t, slot in SLOTS if t == task and slot in self.states]
        self.obey(self.health.heard(f"a/{task}", states, self.now))

    @rule(task=st.integers(0, TASKS - 1))
    def leaves(self, task: int) -> None:
        self.health.down(f"a/{task}")
        self.present.discard(task)

    @rule(
        at=st.sampled_from(SLOTS), age=st.sampled_from([0.0, 3.0, 6.0, 11.0]), share=st.sampled_from([-1.0, 0.0])
    )
    def works(self, at: tuple[int, int], age: float, share: float) -> None:
        self.tell(*at, step_age=age, token_age=age, service=Service(0, 0, 0, 0.1, 0.02, 8, share))

    @rule(at=st.sampled_from(SLOTS), phase=st.sampled_from(["down", "loading", "canary", "ready", "draining"]))
    def turns(self, at: tuple[int, int], phase: ReplicaPhase) -> None:
        self.tell(*at, phase=phase)

    @rule(at=st.sampled_from(SLOTS))
    def is_reborn(self, at: tuple[int, int]) -> None:
        state = self.states[at[1]]
        self.slow.discard(at[1])
        self.tell(*at, incarnation=state.incarnation + 1, phase="loading", service=Service(), tokens=0)

    @rule(slow=st.sets(st.sampled_from(SLOTS), max_size=9), odd=st.booleans(), windows=st.integers(1, 3))
    def windows_pass(self, slow: set[tuple[int, int]], odd: bool, windows: int) -> None:
        for _ in range(windows):
            for task, slot in SLOTS:
                old = self.states[slot].service
                bad = 10 if odd and (task, slot) in slow else 0
                tbt = 0.2 if (task, slot) in slow and not odd else 0.02
                service = Service(old.served + 10, old.failed, old.odd + bad, 0.1, tbt, 8)
                self.tell(task, slot, service=service)
            self.time_passes(KEYS.window_seconds)

    @rule(seconds=st.sampled_from([1.0, 5.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.obey(self.health.tick(self.now))

    # --- what holds ---

    @invariant()
    def never_more_than_the_cap_is_out_for_latency(self) -> None:
        out = [slot for task, slot in SLOTS if task in self.present and slot in self.slow]
        assert len(out) <= max(1, int(KEYS.most_tripped * len(SLOTS))) or self.shrunk()

    def shrunk(self) -> bool:
        """Agents that left and came back ill, or replicas that are loading, may make the share larger than it was
        when it was decided."""
        return len(self.present) < TASKS or any(state.phase != "ready" for state in self.states.values())

    @invariant()
    def the_books_agree(self) -> None:
        ready = sum(s.phase == "ready" for t, n in SLOTS if t in self.present for s in [self.states[n]])
        assert self.health._ready == ready
        for task, slot in SLOTS:
            ill = {number: state for number, state, _ in self.health.ill(f"a/{task}")}
            if task in self.present and self.health._agents[f"a/{task}"].replicas[slot].told is self.states[slot]:
                expected = WEIGHTS[ill.get(slot, "healthy")]
                assert self.weight(slot) in (expected, WEIGHTS["degraded"] if expected == 0 else expected)

    def teardown(self) -> None:
        """Everybody is well from now on, and does what is ordered: in the end all have all of their traffic."""
        for task in range(TASKS):
            self.comes(task)
        for _ in range(150):
            for task, slot in SLOTS:
                state = self.states[slot]
                restarting = any((n, s) == (slot, "restarting") for n, s, _ in self.health.ill(f"a/{task}"))
                incarnation = state.incarnation + restarting
                old = Service() if restarting else state.service
                service = Service(old.served + 10, old.failed, old.odd, 0.1, 0.02, 8)
                self.tell(task, slot, incarnation=incarnation, phase="ready", service=service)
            self.time_passes(KEYS.window_seconds)
        assert all(self.weight(slot) == 1.0 for _, slot in SLOTS), self.health.notes()


HealthMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestHealthMachine = HealthMachine.TestCase
