"""Laws of the outbox: nothing is lost, repeated or overtaken, and one turn's requests share a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from exahpc.entry.fleet import Agent, AgentKey, Group
from exahpc.entry.outbox import Outbox
from exahpc.wire.messages import Cancel, EntryToAgent, Submit, Submits

ONE, TWO = (Agent(AgentKey("a", task, 1), "", Group("", "any", False)) for task in (0, 1))


def submit(name: str, body: bytes = b"{}") -> Submit:
    return Submit(name, 1, 0, 1, "chat", body, False, 0, 0)


class Rig:
    def __init__(self, up: Callable[[Agent], bool] = lambda agent: True) -> None:
        self.sent: list[tuple[Agent, EntryToAgent]] = []
        self.back: list[tuple[Agent, str]] = []
        self.up = up
        self.box = Outbox(self.send, self.unsent)

    def send(self, agent: Agent, message: EntryToAgent) -> bool:
        if self.up(agent):
            self.sent.append((agent, message))
        return self.up(agent)

    def unsent(self, agent: Agent, submits: list[Submit]) -> None:
        self.back += [(agent, one.request) for one in submits]


def run(work: Callable[[Rig], None], up: Callable[[Agent], bool] = lambda agent: True) -> Rig:
    async def turns() -> Rig:
        rig = Rig(up)
        work(rig)
        await asyncio.sleep(0)
        return rig

    return asyncio.run(turns())


def test_one_turns_requests_to_one_agent_share_a_message_in_order() -> None:
    def work(rig: Rig) -> None:
        for name, agent in (("a", ONE), ("b", TWO), ("c", ONE)):
            rig.box.put(agent, submit(name))
        assert not rig.sent

    assert run(work).sent == [(ONE, Submits([submit("a"), submit("c")])), (TWO, submit("b"))]


def test_a_cancel_follows_its_request() -> None:
    def work(rig: Rig) -> None:
        rig.box.put(ONE, submit("a"))
        rig.box.put(ONE, Cancel("a"))

    assert run(work).sent == [(ONE, submit("a")), (ONE, Cancel("a"))]


def test_what_cannot_leave_comes_back_each_once() -> None:
    def work(rig: Rig) -> None:
        for name, agent in (("a", ONE), ("b", TWO), ("c", ONE)):
            rig.box.put(agent, submit(name))

    rig = run(work, up=lambda agent: agent is TWO)
    assert rig.back == [(ONE, "a"), (ONE, "c")]
    assert rig.sent == [(TWO, submit("b"))]


def test_a_request_put_while_others_come_back_leaves_too() -> None:
    async def turns() -> list[tuple[Agent, EntryToAgent]]:
        rig = Rig(lambda agent: agent is TWO)
        box = rig.box = Outbox(rig.send, lambda agent, submits: [box.put(TWO, one) for one in submits] and None)
        box.put(ONE, submit("a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return rig.sent

    assert asyncio.run(turns()) == [(TWO, submit("a"))]


def test_nothing_goes_over_a_new_link_that_was_meant_for_the_lost_one() -> None:
    def work(rig: Rig) -> None:
        rig.box.put(ONE, submit("a"))
        rig.box.put(TWO, submit("b"))
        rig.box.forget(ONE)

    rig = run(work)
    assert rig.sent == [(TWO, submit("b"))]
    assert not rig.back


def test_large_bodies_do_not_pile_up_in_one_message() -> None:
    body = b"x" * 700_000

    def work(rig: Rig) -> None:
        for number in range(8):
            rig.box.put(ONE, submit(str(number), body))

    sizes = [len(m.submits) if isinstance(m, Submits) else 1 for _, m in run(work).sent]
    assert sum(sizes) == 8
    assert max(sizes) <= 2
