"""Laws of prefix affinity: who lately computed the beginning of a prompt is preferred, if that saves work."""

from __future__ import annotations

import random
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from exahpc.entry.affinity import LONGEST, SHORTEST, Affinity, Marks, marks_of
from exahpc.entry.fleet import Agent, AgentKey, Group, Replica
from exahpc.entry.ledger import Record
from exahpc.entry.routing import Router
from exahpc.wire import messages as m
from tests.unit.entry.fleets import ask, picked, replicas, router_of, routes, taken

TEXT = random.Random(1).randbytes(2 * LONGEST)
ONE, TWO = (Replica(Agent(AgentKey("a", task, 1), "", Group("", "any", False)), task, 1) for task in (0, 1))


def marks(text: bytes) -> Marks:
    return marks_of(memoryview(text))


def about(text: bytes, tokens: int = 10) -> Record:
    return ask(len(text) // 4 + tokens, prefix=marks(text))


@given(st.integers(0, 5 * SHORTEST), st.binary(max_size=600), st.binary(max_size=600))
def test_prompts_share_the_marks_of_what_they_have_in_common(common: int, first: bytes, second: bytes) -> None:
    one, two = marks(TEXT[:common] + first), marks(TEXT[:common] + second)
    shared = sum(SHORTEST << number <= common for number in range(9))
    assert one[:shared] == two[:shared] == marks(TEXT)[:shared]


def test_a_change_within_the_last_bytes_of_a_length_changes_all_longer_marks() -> None:
    for number, mark in enumerate(marks(TEXT)):
        other = bytearray(TEXT)
        other[(SHORTEST << number) - 1] ^= 1
        changed = marks(bytes(other))
        assert changed[:number] == marks(TEXT)[:number]
        assert changed[number] != mark


def test_short_prompts_have_no_marks_and_endless_ones_a_bounded_number() -> None:
    assert marks(TEXT[: SHORTEST - 1]) == ()
    assert len(marks(TEXT[:SHORTEST])) == 1
    assert marks(TEXT) == marks(TEXT[:LONGEST])
    assert len(marks(TEXT)) == 9


def test_the_longest_common_beginning_decides_and_the_last_one_to_compute_it() -> None:
    affinity = Affinity()
    affinity.remember(marks(TEXT[:4096]), ONE)
    affinity.remember(marks(TEXT[:1024] + b"x" * 3072), TWO)
    assert affinity.recall(marks(TEXT[:9000])) == (ONE, 4096)
    assert affinity.recall(marks(TEXT[:1030])) == (TWO, 1024)
    assert affinity.recall(marks(b"y" * 1024)) == (None, 0)


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    affinity = Affinity(most=100)
    for number in range(10_000):
        affinity.remember((number,), ONE)
        affinity.remember((-1,), TWO)
    assert affinity.recall((-1,)) == (TWO, SHORTEST)
    assert affinity.recall((9_990,)) == (ONE, SHORTEST)
    assert sum(affinity.recall((number,))[0] is not None for number in range(10_000)) <= 200


def test_a_prompt_goes_where_its_beginning_is_unless_there_is_more_more_to_do_than_that_saves() -> None:
    router = router_of(routes(500))
    first = taken(router, about(TEXT[:4096]))  # it has 4096 / 4 + 10 tokens to do now
    assert picked(router, about(TEXT[:4096])) is not first
    router = router_of(routes(500))
    first = taken(router, about(TEXT[:4096]))
    first.tokens = 1000  # a bit less than what it saves
    assert all(picked(router, about(TEXT[:4096] + bytes(900))) is first for _ in range(50))
    first.tokens = 1100
    assert picked(router, about(TEXT[:4096] + bytes(900))) is not first


def test_a_replica_that_would_be_no_choice_without_it_is_none_with_it() -> None:
    def ready() -> tuple[Router, Replica]:
        router = router_of(routes(20, capacity=10), headroom=0.2)
        kin = taken(router, about(TEXT[:4096]))
        router.give_back(kin, 1, kin.tokens)
        assert picked(router, about(TEXT[:4096])) is kin
        return router, kin

    router, kin = ready()
    router.room(kin.agent, [m.Load(kin.slot, 0, 0, 0.95)], 0.0)
    assert picked(router, about(TEXT[:4096])) is not kin
    router, kin = ready()
    router.take(kin, 8, 1)
    assert picked(router, about(TEXT[:4096])) is not kin
    router, kin = ready()
    again = about(TEXT[:4096])
    again.shun = kin
    assert picked(router, again) is not kin
    router, kin = ready()
    router.update(m.FleetTable(1, 2, routes(20, capacity=10, weights={kin.slot: 0.0})), 0.0)
    assert picked(router, about(TEXT[:4096])) is not kin


def test_affinity_never_crosses_versions_or_length_classes() -> None:
    router = router_of(routes(3) + routes(3, first=3, version="v2"))
    kin = taken(router, ask(1, prefix=marks(TEXT[:4096]), version="v2"))
    router.give_back(kin, 1, 1)
    assert picked(router, ask(1, prefix=marks(TEXT[:4096]), version="")).agent.version == ""
    router = router_of(routes(3, length="short") + routes(3, first=3, length="long"), long_tokens=5000)
    kin = taken(router, ask(6000, prefix=marks(TEXT[:4096])))
    router.give_back(kin, 1, 6000)
    assert picked(router, ask(10, prefix=marks(TEXT[:4096]))).agent.group.length == "short"


class Caches:
    """Prefix caches of a small fleet, for conversations that come back with one more turn."""

    def __init__(self, router: Router, blocks: int = 64) -> None:
        self.router, self.blocks = router, blocks
        self.cached: dict[Replica, OrderedDict[bytes, None]] = {r: OrderedDict() for r in replicas(router)}
        self.hit = self.asked = self.most = 0

    def run(self, seed: int, *, affine: bool, turns: int = 4000) -> float:
        """Share of the prompts' bytes that were found in the cache of the replica that was chosen."""
        dice = random.Random(seed)
        texts = [dice.randbytes(1024) for _ in range(300)]
        running: list[tuple[Replica, Record]] = []
        for _ in range(turns):
            number = dice.randrange(len(texts))
            texts[number] = (texts[number] + dice.randbytes(256))[:8192]
            record = ask(len(texts[number]) // 4 + 64, prefix=marks(texts[number]) if affine else ())
            replica = taken(self.router, record)
            self._compute(self.cached[replica], texts[number])
            running.append((replica, record))
            self.most = max(self.most, replica.sequences)
            if len(running) > 100:
                done, record = running.pop(dice.randrange(len(running)))
                self.router.give_back(done, record.sequences, record.tokens)
        return self.hit / self.asked

    def _compute(self, cache: OrderedDict[bytes, None], text: bytes) -> None:
        known = True
        for end in range(256, len(text) + 1, 256):
            block = text[:end]
            known = known and block in cache
            self.hit += 256 if known else 0
            cache[block] = None
            cache.move_to_end(block)
        self.asked += len(text)
        while len(cache) > self.blocks * 8:
            cache.popitem(last=False)


def test_affinity_multiplies_what_prefix_caches_save_and_keeps_the_fleet_level() -> None:
    without = Caches(router_of(routes(48)))
    with_it = Caches(router_of(routes(48)))
    plain, affine = without.run(1, affine=False), with_it.run(1, affine=True)
    assert affine > 3 * plain
    assert with_it.most <= 2 * without.most
