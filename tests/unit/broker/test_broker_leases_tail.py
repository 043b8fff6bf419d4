"""The end of a batch: what is left is divided by size, and who is slow does not hold the others up."""

from __future__ import annotations

from collections import Counter
from typing import Any

from exahpc.batch.book import Book, Lease
from exahpc.batch.commits import AnyEvent, Commit, Granted
from exahpc.batch.intervals import Ranges, count
from exahpc.batch.salvage import Found
from exahpc.broker.askers import ACTIVE_SECONDS, Askers
from exahpc.broker.lease_actions import Action, Grant, Log, Revoke
from exahpc.broker.leases import STRAGGLER_SECONDS, Leases
from exahpc.wire.messages import LeaseProgress


def opened(rows: int) -> tuple[Leases, Book]:
    leases, book = Leases(1), Book(rows, [])
    leases.open("x", book, 1, 0.0)
    return leases, book


def grants(actions: list[Action]) -> list[Grant]:
    return [action for action in actions if isinstance(action, Grant)]


def report(grant: Grant, rows: Ranges, *, finished: bool = False, returned: Ranges | None = None) -> LeaseProgress:
    return LeaseProgress(
        grant.lease, "x", "j-" + grant.agent[-1], 8, 99, count(rows), 0, finished, rows, returned=returned or []
    )


def straggler() -> tuple[Leases, Book, Grant]:
    """Four rows: a/1 has done its own, a/0 still holds row 1."""
    leases, book = opened(4)
    (slow,) = grants(leases.want("a/0", 2, 0.0))
    for grant in grants(leases.want("a/1", 2, 0.0)) + grants(leases.want("a/1", 2, 0.0)):
        leases.progress("a/1", report(grant, [(grant.first, grant.last)], finished=True), 1.0)
    leases.progress("a/0", report(slow, [(slow.first, slow.last - 1)]), 1.0) if slow.last > 1 else None
    return leases, book, slow


def doubled(leases: Leases, now: float) -> list[Grant]:
    """What an idle agent gets that asked in vain until then."""
    assert leases.want("a/1", 4, now - 1.0) == []
    leases.tick(now)
    return grants(leases.want("a/1", 4, now))


def test_leases_are_shares_of_what_is_left_by_the_size_of_agents() -> None:
    leases, book = opened(4000)
    rooms = {"a/0": 600, "a/1": 60, "a/2": 60}
    got = Counter[str]()
    for _ in range(400):
        for agent, room in rooms.items():
            got[agent] += sum(grant.last - grant.first for grant in grants(leases.want(agent, room, 0.0)))
            assert all(got[other] for other in rooms) or len(got) < 3
    assert not book.pending
    assert got["a/0"] > 4 * got["a/1"]
    assert abs(got["a/1"] - got["a/2"]) < 100


def test_nobody_is_given_more_than_half_of_its_share_of_what_is_left() -> None:
    leases, book = opened(5000)
    for number in range(10):
        leases.want(f"a/{number}", 100, 0.0)
    while (left := len(book.pending)) > 20:
        given = sum(grant.last - grant.first for grant in grants(leases.want("a/3", 100, 1.0)))
        assert 0 < given <= left / 20 + 1


def test_a_row_that_runs_far_longer_than_others_is_begun_once_more_elsewhere() -> None:
    leases, book, slow = straggler()
    (row,) = [first for first, _ in book.leases[slow.lease].held]
    assert doubled(leases, STRAGGLER_SECONDS) == []
    (second,) = doubled(leases, STRAGGLER_SECONDS + 5.0)
    assert (second.first, second.last, second.agent) == (row, row + 1, "a/1")
    assert doubled_again(leases, STRAGGLER_SECONDS + 10.0) == []
    assert book.leased == 1, "the book knows one holder"


def doubled_again(leases: Leases, now: float) -> list[Grant]:
    """What yet another agent gets."""
    assert leases.want("a/2", 4, now - 1.0) == []
    leases.tick(now)
    return grants(leases.want("a/2", 4, now))


def test_the_first_of_two_that_run_a_row_counts_and_the_other_may_stop() -> None:
    for winner in ("slow", "second"):
        leases, book, slow = straggler()
        (second,) = doubled(leases, 50.0)
        won, lost = (slow, second) if winner == "slow" else (second, slow)
        rows = [(second.first, second.last)]
        commit, *revokes = leases.progress(won.agent, report(won, rows, finished=True), 51.0)
        assert isinstance(commit, Log)
        assert isinstance(commit.event, Commit)
        assert revokes == [Revoke(lost.agent, lost.lease)]
        assert book.done
        assert leases.progress(lost.agent, report(lost, rows, finished=True), 52.0) == []
        assert leases.salvaged(lost.agent, "x", [Found("j", 8, 99, rows, [])], 53.0) == []
        assert book.ok == 4


def test_second_leases_are_forgotten_with_their_agent_and_may_be_given_again() -> None:
    leases, _, _ = straggler()
    assert doubled(leases, 50.0)
    leases.agent_lost("a/1", 51.0)
    assert len(doubled_again(leases, 60.0)) == 1


def test_a_hello_that_names_a_second_lease_keeps_it() -> None:
    leases, _, _ = straggler()
    (second,) = doubled(leases, 50.0)
    assert leases.hello("a/1", [second.lease, 77], 51.0) == [Revoke("a/1", 77)]
    assert doubled_again(leases, 60.0) == []


def test_rows_of_a_second_lease_that_come_back_may_be_doubled_again() -> None:
    leases, _, _ = straggler()
    (second,) = doubled(leases, 50.0)
    back = [(second.first, second.last)]
    assert leases.progress("a/1", report(second, [], finished=True, returned=back), 51.0) == []
    assert len(doubled_again(leases, 60.0)) == 1


def test_a_row_under_which_an_agent_was_lost_is_never_doubled() -> None:
    leases, book = opened(1)
    leases.want("a/0", 1, 0.0)
    leases.agent_lost("a/0", 1.0)
    leases.salvaged("a/0", "x", [], 2.0)
    assert len(grants(leases.want("a/0", 1, 3.0))) == 1
    assert book.leased == 1
    assert doubled(leases, 100.0) == []


def test_who_has_most_beyond_its_size_gives_first() -> None:
    leases, book = opened(60)
    leases.want("a/0", 40, 0.0)
    while leases.want("a/1", 10, 0.0):
        pass
    load = {agent: sum(len(lease.held) for lease in book.of(agent)) for agent in ("a/0", "a/1")}
    assert load["a/0"] / 40 < load["a/1"] / 10
    assert leases.want("a/2", 10, 10.0) == []
    revokes = [action for action in leases.tick(10.0) if isinstance(action, Revoke)]
    assert {(revoke.agent, revoke.soft) for revoke in revokes} == {("a/1", True)}
    asked = {revoke.lease for revoke in revokes}
    assert sum(len(lease.held) for lease in book.of("a/1") if lease.lease in asked) >= load["a/1"] // 2
    assert leases.tick(10.5) == [], "looked at once a second"


def test_rows_of_an_agent_that_was_told_to_end_are_not_blamed() -> None:
    leases, _ = opened(1)
    for number in range(5):
        (grant,) = grants(leases.want(f"a/{number}", 1, 0.0))
        assert (grant.alone, grant.given_up) == (False, "")
        leases.agent_lost(f"a/{number}", 1.0, orderly=True)
        leases.hello(f"a/{number}", [], 1.0)
        leases.salvaged(f"a/{number}", "x", [], 2.0)


class Unread(dict[int, Lease]):
    """Leases that nobody may go through."""

    def values(self) -> Any:
        raise AssertionError("all leases were looked at")

    items = __iter__ = values


def test_an_ask_a_report_a_hello_look_at_no_leases_but_their_own() -> None:
    leases, book = opened(100_000)
    held = {f"a/{n}": grants(leases.want(f"a/{n}", 16, 0.0))[0] for n in range(1000)}
    book.leases = Unread(book.leases)
    grant = held["a/500"]
    assert leases.want("a/500", 16, 1.0)
    assert leases.progress("a/500", report(grant, [(grant.first, grant.first + 1)]), 1.0)
    assert leases.hello("a/500", [grant.lease], 2.0)
    assert leases.salvaged("a/500", "x", [Found("j", 8, 99, [(grant.first, grant.last)], [])], 2.0)
    assert leases.agent_lost("a/501", 3.0)
    assert leases.salvaged("a/501", "x", [], 4.0)
    assert book.agents == frozenset(held) - {"a/500", "a/501"}


def test_a_book_from_its_state_goes_on_like_the_one_it_was_taken_from() -> None:
    _, book = opened(100)
    events: list[AnyEvent] = [Granted(7, "a/0", 0, 40), Commit(7, "j", 8, 9, [(3, 9)], [(11, 12)])]
    for event in events:
        book.apply(event, 1.0)
    copy = Book.of_state(book.state(), [])
    assert copy.state() == book.state()
    more = Commit(0, "j", 9, 99, [(0, 3), (50, 51)], [])
    for each in (book, copy):
        each.apply(more, 2.0)
    assert copy.state() == book.state()
    assert copy.agents == {"a/0"}


def test_agents_that_neither_ask_nor_hold_rows_have_no_share() -> None:
    busy = {"b"}
    askers = Askers(busy.__contains__)
    for agent in "abc":
        askers.ask(agent, 100, 0.0)
    assert askers.ask("c", 100, ACTIVE_SECONDS + 1.0).part == 0.5 / 2
    busy.clear()
    assert askers.ask("c", 100, 3 * ACTIVE_SECONDS).part == 1.0 / 2
    assert askers.starving(3 * ACTIVE_SECONDS) == ["c"]


def test_what_comes_back_is_divided_among_those_that_starve() -> None:
    askers = Askers(lambda agent: True)
    for agent, rows in (("full", 600), ("a", 100), ("b", 300)):
        askers.ask(agent, rows, 0.0).got = 10 if agent == "full" else 0
    assert askers.starving(1.0) == ["a", "b"]
    assert askers.ask("full", 600, 2.0).part == 0.0
    assert askers.ask("a", 100, 2.0).part == 1 / 4
    assert askers.ask("b", 50, 2.0).part == 1.0, "the rest"
    assert askers.ask("b", 50, 2.0).part == 0.3 / 2
