"""What a replica is measured by: latency of requests, and of batch rows that have it for themselves; answers;
quiet when idle."""

from __future__ import annotations

import json

import pytest

from exahpc.agent.relay import Relay
from exahpc.agent.service import ODD_TOKENS
from exahpc.wire.messages import NoRoom, Resume, Service, Tokens
from tests.unit.agent.test_agent_relay import P, admits, ids, relay, submit

A, B = ids("ab")


def row(made: Relay, name: str, now: float, tokens: int) -> int:
    """Start a batch row; returns its sequence."""
    body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": tokens}).encode()
    (admit,) = admits(made.row(name, "completion", body, 0, 0, now))
    return admit.sequence


def request(made: Relay, name: str, now: float, tokens: int) -> int:
    (admit,) = admits(made.submit(P, submit(name, max_tokens=tokens), now))
    return admit.sequence


def play(made: Relay, sequence: int, tokens: list[int], start: float, step: float) -> float:
    """Tokens, one every `step` seconds from `start` on, then the end with the last; returns when."""
    for number, token in enumerate(tokens):
        last = number == len(tokens) - 1
        ended = [(sequence, "length")] if last else []
        made.tokens(0, Tokens([(sequence, token)], ended), start + number * step)  # type: ignore[arg-type]
    return start + (len(tokens) - 1) * step


@pytest.mark.parametrize("kind", [request, row])
def test_latency_is_taken_from_when_the_replica_got_it_and_between_tokens(kind: type) -> None:
    made = relay()
    for number in range(3):
        sequence = kind(made, f"r{number}", 10.0, 5)
        play(made, sequence, [A, B, A, B, A], 10.5, 0.1)
    service = made.service(0, 11.0)
    assert (service.ttft, service.tbt, service.samples) == (0.5, 0.1, 3)
    assert (service.served, service.failed, service.odd) == (3, 0, 0)


def test_an_idle_replica_tells_the_same_for_ever() -> None:
    made = relay()
    play(made, request(made, "r", 0.0, 5), [A, B, A, B, A], 0.5, 0.1)
    assert made.service(0, 2.0) == made.service(0, 1e6)
    assert relay().service(0, 1.0) == Service()


def test_a_request_that_runs_counts_with_its_latest_pace() -> None:
    made = relay()
    sequence = request(made, "r", 0.0, 40)
    for number in range(10):
        made.tokens(0, Tokens([(sequence, A if number % 2 else B)], []), 0.1 * number)
    assert made.service(0, 0.9).tbt == pytest.approx(0.1)
    for number in range(5):
        made.tokens(0, Tokens([(sequence, A if number % 2 else B)], []), 2.0 + number)
    assert made.service(0, 6.0).tbt == pytest.approx(1.02)


def test_rows_that_give_way_to_online_requests_do_not_make_a_replica_look_slow() -> None:
    made = relay()
    steady = row(made, "steady", 0.0, 20)
    for number in range(5):
        made.tokens(0, Tokens([(steady, A if number % 2 else B)], []), 1.0 + 0.1 * number)
    assert made.service(0, 1.4).tbt == pytest.approx(0.1)
    online, late = request(made, "online", 1.4, 20), row(made, "late", 1.4, 20)
    for number in range(15):
        made.tokens(0, Tokens([(online, A if number % 2 else B)], []), 1.5 + 0.1 * number)
    before = made.service(0, 3.0)
    made.tokens(0, Tokens([(steady, A), (late, A)], []), 3.0)
    service = made.service(0, 3.0)
    assert (service.ttft, service.samples) == (before.ttft, 2)
    assert service.tbt == pytest.approx(0.1, abs=0.01)
    made.tokens(0, Tokens([(online, A)], [(online, "length")]), 3.0)
    play(made, row(made, "free", 3.0, 3), [A, B, A], 3.1, 0.1)
    assert made.service(0, 3.3).samples == 3, "from now on they count again"


def test_answers_of_one_token_say_nothing_about_the_time_between() -> None:
    made = relay()
    for number in range(3):
        play(made, request(made, f"r{number}", 0.0, 1), [A], 1.0, 0.0)
    assert made.service(0, 2.0).tbt == 0
    play(made, request(made, "r", 0.0, 3), [A, B, A], 1.0, 0.1)
    assert made.service(0, 2.0).tbt == 0.1


def test_a_request_that_waits_in_vain_makes_the_figures_worse_before_anything_comes() -> None:
    made = relay()
    for number in range(2):
        play(made, request(made, f"r{number}", 0.0, 2), [A, B], 0.1, 0.1)
    for number in range(3):
        request(made, f"w{number}", 1.0, 2)
    assert made.service(0, 1.05).ttft == 0.1, "they may still be as fast"
    assert made.service(0, 9.0).ttft == 8.0
    assert made.service(0, 9.0).samples == 2
    stuck = relay()
    sequence = request(stuck, "r", 0.0, 9)
    stuck.tokens(0, Tokens([(sequence, A)], []), 0.1)
    stuck.tokens(0, Tokens([(sequence, B)], []), 0.2)
    assert stuck.service(0, 0.2).tbt == 0.1
    assert stuck.service(0, 5.2).tbt == 5.0


def test_only_the_last_requests_count_and_only_those_of_the_last_while() -> None:
    made = relay()
    health = made._deployment.health
    for number in range(health.window_requests + 10):
        play(made, request(made, f"r{number}", 0.0, 2), [A, B], 1.0, 0.1)
    assert made.service(0, 2.0).samples == health.window_requests
    later = 2.0 + health.rest_seconds
    play(made, request(made, "later", later, 2), [A, B], later + 0.1, 0.1)
    service = made.service(0, later + 1)
    assert (service.samples, service.ttft) == (1, 0.1), "what was before a rest does not count after it"


def test_one_token_over_and_over_is_odd_and_so_is_nothing_at_all() -> None:
    made = relay()
    play(made, request(made, "same", 0.0, ODD_TOKENS), [A] * ODD_TOKENS, 1.0, 0.1)
    assert made.service(0, 9.0).odd == 1
    play(made, row(made, "short", 0.0, 8), [A] * 8, 1.0, 0.1)
    play(made, request(made, "varied", 0.0, 40), [A] * 39 + [B], 1.0, 0.1)
    play(made, request(made, "late", 0.0, 40), [B] + [A] * 39, 1.0, 0.1)
    assert made.service(0, 9.0).odd == 1
    sequence = request(made, "empty", 0.0, 8)
    made.tokens(0, Tokens([], [(sequence, "stop")]), 1.0)
    assert (made.service(0, 9.0).odd, made.service(0, 9.0).served) == (2, 5)


def test_what_another_replica_generated_is_not_held_against_this_one() -> None:
    made = relay()
    resume = [Resume(0, [A] * ODD_TOKENS, ODD_TOKENS)]
    (admit,) = admits(made.submit(P, submit("r", attempt=2, resume=resume, max_tokens=40), 0.0))
    play(made, admit.sequence, [A, A], 1.0, 0.1)
    assert (made.service(0, 9.0).served, made.service(0, 9.0).odd) == (1, 0)


def test_a_fault_of_the_replica_counts_as_failed_and_a_client_that_leaves_does_not() -> None:
    made = relay()
    sequence = request(made, "r", 0.0, 8)
    made.tokens(0, Tokens([], [(sequence, "error")]), 1.0)
    sequence = request(made, "s", 0.0, 8)
    made.no_room(0, NoRoom(sequence, "no"))
    request(made, "t", 0.0, 8)
    made.cancel(P, "t")
    assert (made.service(0, 2.0).served, made.service(0, 2.0).failed) == (0, 2)


def test_several_choices_are_one_answer() -> None:
    made = relay()
    actions = made.submit(P, submit("r", n=2, max_tokens=2), 0.0)
    for admit in admits(actions):
        play(made, admit.sequence, [A, B], 1.0, 0.1)
    service = made.service(0, 3.0)
    assert (service.served, service.samples) == (1, 2)


def test_a_new_incarnation_begins_anew() -> None:
    made = relay()
    play(made, request(made, "r", 0.0, 2), [A, B], 1.0, 0.1)
    made.replica_gone(0, own_exit=True)
    assert made.service(0, 2.0) == Service()
