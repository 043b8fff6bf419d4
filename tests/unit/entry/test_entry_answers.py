"""Laws of what comes to an entry in one moment: each answer stands for itself, a client gets it in one piece."""

from __future__ import annotations

import socket
import threading
from typing import Any

from exahpc.wire import messages as m
from tests.unit.entry.conftest import KEY, Running
from tests.unit.entry.stubs import Fleet, StubAgent

WORDS = [b"data: one\n\n", b"data: two\n\n", b"data: three\n\n"]


class Asked:
    """One streamed request whose agent says what the test says."""

    def __init__(self, entry: Running, fleet: Fleet) -> None:
        self.fleet = fleet
        for agent in fleet.agents.values():
            agent.mute = True
        body = b'{"model": "tiny", "prompt": "x", "max_tokens": 9, "stream": true}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n"
        self.sock = socket.create_connection(("127.0.0.1", int(entry.base.rsplit(":", 1)[1])), 20)
        self.sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.agent: StubAgent = entry.until(
            lambda: next((agent for agent in fleet.agents.values() if agent.submits), None)
        )
        self.submit = self.agent.submits[0]

    def frame(self, number: int) -> m.Frame:
        name, attempt = self.submit.request, self.submit.attempt
        return m.Frame(name, attempt, 0, number, [number], number + 1, WORDS[number])

    def done(self) -> m.Done:
        return m.Done(self.submit.request, self.submit.attempt, b"data: [DONE]\n\n", 1, 3)

    def tell(self, *answers: Any) -> None:
        self.fleet.call(lambda: self.agent.server.send(self.agent.peer, m.Answers(list(answers))))

    def answer(self) -> bytes:
        """The chunks of the whole answer, with their lengths."""
        with self.sock.makefile("rb") as file:
            return file.read().partition(b"\r\n\r\n")[2]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_frames_and_the_end_of_one_moment_are_one_piece_in_order(entry: Running, fleet: Fleet) -> None:
    asked = Asked(entry, fleet)
    asked.tell(m.Frames([asked.frame(0)]), m.Frames([asked.frame(1), asked.frame(2)]), asked.done())
    assert asked.answer() == chunk(b"".join(WORDS) + b"data: [DONE]\n\n") + b"0\r\n\r\n"


def test_what_came_before_an_error_is_delivered_before_it(entry: Running, fleet: Fleet) -> None:
    asked = Asked(entry, fleet)
    failed = m.Failed(asked.submit.request, asked.submit.attempt, 500, "broken")
    asked.tell(m.Frames([asked.frame(0)]), failed)
    first, _, error = asked.answer().partition(chunk(WORDS[0]))
    assert first == b""
    assert b"broken" in error


def test_one_bad_answer_does_not_take_the_others_of_its_message_along(entry: Running, fleet: Fleet) -> None:
    asked = Asked(entry, fleet)
    stranger = m.Done("cmpl-unknown", 1, b"", 1, 1)
    asked.tell(stranger, m.Busy("cmpl-unknown", 1), m.Frames([asked.frame(0)]), asked.done())
    assert asked.answer().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_hundreds_of_streams_that_move_in_one_moment_all_move(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.capacity = 400
        agent.interval = 0.05
    fleet.publish()
    entry.ready(2)
    texts: list[str] = []

    def stream() -> None:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 3, "stream": True}
        texts.append(entry.post("/v1/completions", json=body).text)

    threads = [threading.Thread(target=stream) for _ in range(300)]  # more than one slice of the entry's writing
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 300
    assert all(text.count('"text":') == 3 and text.endswith("data: [DONE]\n\n") for text in texts)
