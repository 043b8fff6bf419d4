"""Laws of HTTP/1.1 on one connection, byte by byte, under a real entry."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.unit.entry.conftest import KEY, Own, Running
from tests.unit.entry.stubs import Fleet, text_of
from tests.unit.entry.test_entry_http import ASK

pytestmark = pytest.mark.timeout(60)
BODY = json.dumps(ASK).encode()
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes = BODY, *more: str, version: str = "1.1") -> bytes:
    head = [f"POST /v1/completions HTTP/{version}", "Host: x", f"Authorization: Bearer {KEY}", *more]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Wire:
    """A raw client."""

    def __init__(self, entry: Running) -> None:
        port = int(entry.base.rsplit(":", 1)[1])
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next one: status, fields, body."""
        status = int(self.file.readline().split()[1])
        fields = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            assert name not in fields
            fields[name] = value
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.file.readline(), 16):
                body += self.file.read(size)
                assert self.file.readline() == b"\r\n"
            assert self.file.readline() == b"\r\n"
        else:
            body = self.file.read(int(fields.get("content-length", "0")))
        return status, fields, body

    def closed(self) -> bool:
        return self.file.read() == b""


def text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["text"])


def test_requests_sent_ahead_are_answered_in_order(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.005
    wanted = [3, 1, 2]
    ahead = b"".join(post(json.dumps(ASK | {"max_tokens": n}).encode()) for n in wanted)
    with Wire(entry) as wire:
        wire.send(ahead + HEALTH + post(b"{") + HEALTH * 5000)
        for n in wanted:
            status, fields, body = wire.answer()
            assert (status, text(body)) == (200, text_of(0, n))
            assert fields["x-request-id"].startswith("cmpl-")
            assert fields["date"]
        assert [wire.answer()[0] for _ in range(2)] == [200, 400]
        assert {wire.answer()[0] for _ in range(5000)} == {200}


@pytest.mark.parametrize("size", [1, 7, 50])
def test_a_request_may_come_in_any_pieces(entry: Running, size: int) -> None:
    whole = post() + post()
    with Wire(entry) as wire:
        for start in range(0, len(whole), size):
            wire.send(whole[start : start + size])
            time.sleep(0.001)
        assert [text(wire.answer()[2]) for _ in range(2)] == [text_of(0, 20)] * 2


def test_a_client_that_leaves_with_requests_sent_ahead_takes_them_along(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.05
    with Wire(entry) as wire:
        wire.send(post(json.dumps(ASK | {"max_tokens": 2000}).encode()))
        entry.until(lambda: any(agent.running for agent in fleet.agents.values()))
        wire.send(post() * 3)
    entry.until(lambda: entry.metric('exahpc_requests_total{ending="cancelled"}') == 1)
    assert entry.metric("exahpc_requests_running") == 0
    assert sum(len(agent.submits) for agent in fleet.agents.values()) == 1


def test_old_http_gets_no_chunks_and_the_end_of_the_stream_is_the_end_of_the_connection(entry: Running) -> None:
    with Wire(entry) as wire:
        wire.send(post(json.dumps(ASK | {"stream": True}).encode(), "Connection: keep-alive", version="1.0"))
        status, fields, _ = wire.answer()
        assert (status, fields["connection"]) == (200, "close")
        assert "transfer-encoding" not in fields
        events = wire.file.read().split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert all(event.startswith(b"data: ") for event in events[:-1])


def test_old_http_learns_that_its_connection_closes(entry: Running) -> None:
    with Wire(entry) as wire:
        wire.send(post(BODY, "Connection: keep-alive", version="1.0"))
        status, fields, body = wire.answer()
        assert (status, fields["connection"], text(body)) == (200, "close", text_of(0, 20))
        assert wire.closed()


def test_close_is_said_and_done_for_every_kind_of_answer(entry: Running) -> None:
    stream = json.dumps(ASK | {"stream": True}).encode()
    for body, status in ((BODY, 200), (stream, 200), (b"{", 400)):
        with Wire(entry) as wire:
            wire.send(post(body, "Connection: close") + HEALTH)
            answer = wire.answer()
            assert (answer[0], answer[1]["connection"]) == (status, "close")
            assert wire.closed()


def test_who_asks_before_sending_a_body_is_told_to_go_on_or_refused(entry: Running) -> None:
    with Wire(entry) as wire:
        head, _, body = post(BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        assert wire.answer()[0] == 100
        wire.send(body)
        assert wire.answer()[0] == 200
    with Wire(entry) as wire:
        wire.send(head.replace(KEY.encode(), b"wrong") + b"\r\n\r\n")
        assert wire.answer()[0] == 401
        assert wire.closed()


def test_a_refused_body_is_read_past_and_the_connection_goes_on(entry: Running) -> None:
    with Wire(entry) as wire:
        wire.send(post().replace(KEY.encode(), b"wrong") + post())
        assert [wire.answer()[0] for _ in range(2)] == [401, 200]


@pytest.mark.parametrize("own", [{"limits": "max_body_bytes = 2000"}], indirect=True)
def test_chunks_are_a_body_too_and_bounded_like_one(own: Own) -> None:
    head = post().partition(b"\r\n\r\n")[0].replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX: ")
    with Wire(own.entry) as wire:
        wire.send(head + b"\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")
        assert text(wire.answer()[2]) == text_of(0, 20)
        wire.send(head + b"\r\n\r\n" + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 5 + b"0\r\n\r\n" + HEALTH)
        assert [wire.answer()[0] for _ in range(2)] == [413, 200]


def test_garbage_behind_a_request_spoils_only_what_follows(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.interval = 0.01
    with Wire(entry) as wire:
        wire.send(post() + b"\x00garbage\r\n\r\n")
        assert text(wire.answer()[2]) == text_of(0, 20)
        assert wire.closed()


def test_garbage_in_a_body_is_a_400(entry: Running, fleet: Fleet) -> None:
    head = post().partition(b"\r\n\r\n")[0].replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX: ")
    with Wire(entry) as wire:
        wire.send(head + b"\r\n\r\nnonsense\r\n")
        assert wire.answer()[0] == 400
        assert wire.closed()
    assert not any(agent.submits for agent in fleet.agents.values())


def test_a_head_without_end_is_cut_off(entry: Running) -> None:
    with Wire(entry) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nX: ")
        with pytest.raises(OSError):  # noqa: PT012  it may close while we send
            for _ in range(1000):
                wire.send(b"x" * 10_000)
                time.sleep(0.0005)
            raise OSError


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
@pytest.mark.parametrize("size", [1, 60, 10_000])
def test_an_offer_to_upgrade_is_passed_over(entry: Running, offer: str, size: int) -> None:
    chunked = post(b"", "Connection: Upgrade", f"Upgrade: {offer}", "Transfer-Encoding: chunked").replace(
        b"Content-Length: 0\r\n", b""
    )
    chunked += b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    whole = post(BODY, "Connection: Upgrade", f"Upgrade: {offer}") + chunked + post()
    with Wire(entry) as wire:
        for start in range(0, len(whole), size):
            wire.send(whole[start : start + size])
        for _ in range(3):
            status, _, body = wire.answer()
            assert (status, text(body)) == (200, text_of(0, 20))


def test_nothing_is_tunnelled(entry: Running) -> None:
    with Wire(entry) as wire:
        wire.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        assert wire.answer()[0] == 400
        assert wire.closed()


def test_head_gets_no_body(entry: Running) -> None:
    with Wire(entry) as wire:
        wire.send(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 405 " in wire.file.readline()
        while wire.file.readline() != b"\r\n":
            pass
        wire.send(HEALTH)
        assert wire.answer()[0] == 200


def test_a_path_is_what_its_bytes_mean(entry: Running) -> None:
    for target in (b"/health?probe=1", b"/%68ealth", b"http://elsewhere/health"):
        with Wire(entry) as wire:
            wire.send(HEALTH.replace(b"/health", target))
            assert wire.answer()[0] == 200
    for target in (b"*", b"//health", b"/health/"):
        with Wire(entry) as wire:
            wire.send(HEALTH.replace(b"/health", target))
            assert wire.answer()[0] in (400, 401)
