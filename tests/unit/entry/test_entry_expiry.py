"""Who takes too long is closed, who does not even read is cut, and nobody else. No loop runs: time is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from exahpc.entry import connection as c
from exahpc.entry.http1 import Request

ASK = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Rig:
    """A connection at time 0 whose application answers when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.closing = self.aborted = False
        self.served: list[Request] = []
        loop = SimpleNamespace(time=lambda: self.now, call_soon=lambda work: work())
        app = SimpleNamespace(
            buffer_bytes=1, body_bytes=100, admit=lambda request: None, serve=lambda r, _: self.served.append(r)
        )
        server = SimpleNamespace(connections=set(), default_headers=[])
        self.connection = c.Connection(SimpleNamespace(config=None, app=app), server, {}, loop)
        self.connection.connection_made(self)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def at(self, now: float) -> tuple[bool, bool]:
        self.now = now
        self.connection.expire(now)
        return self.closing, self.aborted

    def hears(self, data: bytes) -> Any:
        self.connection.data_received(data)
        return self.served[-1] if self.served else None


OPEN, CLOSED, CUT = (False, False), (True, False), (True, True)


def test_a_client_that_sends_nothing_or_half_a_request_is_closed_then_cut() -> None:
    for start in (b"", ASK[:20], b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"):
        rig = Rig()
        rig.hears(start)
        assert rig.at(c.REQUEST_SECONDS - 1) == OPEN
        assert rig.at(c.REQUEST_SECONDS + 1) == CLOSED
        assert rig.at(c.REQUEST_SECONDS + 3) == CUT


def test_bytes_that_trickle_do_not_renew_the_time() -> None:
    rig = Rig()
    for second in range(int(c.REQUEST_SECONDS)):
        rig.now = float(second)
        rig.hears(ASK[second : second + 1] if second < 30 else b"")
    assert rig.at(c.REQUEST_SECONDS + 1) == CLOSED


def test_an_answer_may_take_any_time_also_when_a_request_waits_behind_it() -> None:
    rig = Rig()
    rig.hears(ASK)
    rig.hears(ASK[:10])
    assert rig.at(1e6) == OPEN


def test_after_an_answer_the_next_request_is_waited_for_a_while() -> None:
    rig = Rig()
    rig.hears(ASK)
    rig.now = 1000.0
    rig.connection.respond(200, b"")
    assert rig.at(1000 + c.KEEP_ALIVE_SECONDS - 1) == OPEN
    assert rig.at(1000 + c.KEEP_ALIVE_SECONDS + 1) == CLOSED


def test_last_bytes_that_nobody_reads_are_given_up() -> None:
    rig = Rig()
    rig.hears(ASK.replace(b"Host: x", b"Connection: close"))
    rig.now = 1000.0
    rig.connection.respond(200, b"")
    assert rig.at(1000 + c.KEEP_ALIVE_SECONDS - 1) == CLOSED
    assert rig.at(1000 + c.KEEP_ALIVE_SECONDS + 1) == CUT
