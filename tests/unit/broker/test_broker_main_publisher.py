"""When entries are told."""

from __future__ import annotations

import asyncio

from exahpc.broker.entries import Entries
from exahpc.broker.fleet import Fleet
from exahpc.broker.publisher import Publisher
from exahpc.wire import messages as m
from tests.unit.broker.test_broker_fleet import beat, deployment, hello


def entries() -> Entries:
    found = Entries()
    found.hello(b"e", m.EntryHello(0, 1, "http://x/v1"), 0.0)
    return found


def test_many_changes_at_once_are_few_tables_and_the_last_one_is_true() -> None:
    async def story() -> None:
        told: list[m.Message] = []
        fleet = Fleet(deployment(), 1, 0.0)
        publisher = Publisher(fleet, entries(), lambda peer, message: told.append(message) or True)
        fleet.hello(b"p", hello(0, phase="loading"), 0.0)
        for incarnation in range(1, 100):
            fleet.beat(b"p", beat(m.ReplicaState(0, incarnation, "ready")), 0.0)
            publisher.soon()
        while not told:
            await asyncio.sleep(0.01)
        assert len(told) == 1
        assert told == [fleet.current()]

    asyncio.run(story())


def test_a_broker_without_memory_of_a_running_fleet_first_listens_and_then_tells_all_entries() -> None:
    async def story() -> None:
        told: list[m.Message] = []
        fleet = Fleet(deployment(), 2, 0.0)
        publisher = Publisher(fleet, entries(), lambda peer, message: told.append(message) or True, hold=0.3)
        publisher.greet(b"e")
        publisher.soon()
        assert told == [], "an empty table would cost the entries all their routes"
        fleet.hello(b"p", hello(0), 0.0)
        publisher.soon()
        while not told:
            await asyncio.sleep(0.01)
        assert [len(table.agents) for table in told if isinstance(table, m.FleetTable)] == [1]
        publisher.greet(b"f")
        assert len(told) == 2

    asyncio.run(story())


def test_an_entry_that_is_gone_is_forgotten() -> None:
    async def story() -> None:
        known = entries()
        fleet = Fleet(deployment(), 1, 0.0)
        publisher = Publisher(fleet, known, lambda peer, message: False)
        fleet.hello(b"p", hello(0), 0.0)
        publisher.soon()
        while known.peers():
            await asyncio.sleep(0.01)

    asyncio.run(story())


def test_a_silent_entry_leaves_the_status_and_a_new_connection_replaces_the_old_one() -> None:
    known = entries()
    known.hello(b"f", m.EntryHello(0, 2, "http://x/v1"), 1.0)
    known.hello(b"g", m.EntryHello(1, 3, "http://x/v1"), 1.0)
    known.beat(b"f", m.EntryBeat(5, 0, 7, 1, 0, 0), 9.0)
    assert known.rows() == [
        m.EntryStatus(0, "http://x/v1", "", in_flight=5, waiting=0, done=7, failed=1),
        m.EntryStatus(1, "http://x/v1", "", in_flight=0, waiting=0, done=0, failed=0),
    ]
    known.tick(12.0)
    assert known.peers() == [b"f"]
