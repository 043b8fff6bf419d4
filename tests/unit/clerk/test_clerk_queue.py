"""Which batch runs when."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exahpc.clerk.queue import AGAIN, DONE, MOST_CRASHES, PAUSE, Queue

CRASH = -9


def test_only_so_many_run_at_once_and_the_next_one_follows_an_end() -> None:
    queue = Queue(2)
    for name in ("a", "b", "c"):
        queue.add(name, "one")
    assert queue.start(0.0) == ["a", "b"]
    assert queue.start(1.0) == []
    assert not queue.ended("a", DONE, 2.0)
    assert queue.start(2.0) == ["c"]
    assert "a" not in queue


def test_an_owner_with_many_batches_does_not_keep_another_one_waiting() -> None:
    queue = Queue(2)
    for number in range(5):
        queue.add(f"b{number}", "busy")
    queue.add("z", "other")
    assert queue.start(0.0) == ["b0", "z"]


def test_who_cannot_go_on_now_gives_its_place_to_others_and_is_tried_again() -> None:
    queue = Queue(1)
    queue.add("a", "")
    queue.add("b", "")
    assert queue.start(0.0) == ["a"]
    assert not queue.ended("a", AGAIN, 1.0)
    assert queue.start(1.0) == ["b"]
    queue.ended("b", DONE, 2.0)
    assert queue.start(2.0) == []
    assert queue.start(1.0 + PAUSE) == ["a"]


def test_a_batch_whose_worker_only_crashes_is_given_up_and_one_that_works_between_crashes_is_not() -> None:
    queue, now = Queue(1), 0.0
    queue.add("a", "")
    queue.add("b", "")
    for crash in range(1, MOST_CRASHES + 1):
        assert queue.start(now) == ["a"]
        assert queue.ended("a", CRASH, now + 1.0) is (crash == MOST_CRASHES)
        assert "a" in queue or crash == MOST_CRASHES
        now += 100.0
    for _ in range(3 * MOST_CRASHES):
        assert queue.start(now) == ["b"]
        now += 1000.0
        assert not queue.ended("b", CRASH, now)
        now += 10.0


class Machine(RuleBasedStateMachine):
    """Batches of a few owners come and end in any way."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.now, self.added = Queue(3), 0.0, 0
        self.owners: dict[str, str] = {}
        self.running: set[str] = set()

    @rule(owner=st.sampled_from("xyz"))
    def add(self, owner: str) -> None:
        name = f"{self.added:04d}"
        self.added += 1
        self.owners[name] = owner
        self.queue.add(name, owner)

    @rule(seconds=st.floats(0, 400))
    def start(self, seconds: float) -> None:
        self.now += seconds
        started = self.queue.start(self.now)
        assert not set(started) & self.running, "nothing runs twice"
        self.running |= set(started)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), code=st.sampled_from((DONE, AGAIN, CRASH, 1)))
    def end(self, data: st.DataObject, code: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(name)
        given_up = self.queue.ended(name, code, self.now)
        if code == DONE or given_up:
            del self.owners[name]
        assert not (given_up and code in (DONE, AGAIN))

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert len(self.running) <= 3
        assert len(self.queue) == len(self.owners)

    def teardown(self) -> None:
        """Whatever happened: all that is left runs in the end."""
        for name in list(self.running):
            self.queue.ended(name, DONE, self.now)
            del self.owners[name]
        while self.owners:
            self.now += 1000.0
            started = self.queue.start(self.now)
            assert started
            for name in started:
                self.queue.ended(name, DONE, self.now)
                del self.owners[name]


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=30)
