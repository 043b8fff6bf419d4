"""The load generator against an endpoint that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable

import pytest

from exahpc.errors import ExahpcError, LinkError
from exahpc.lab.load import Load, Shape, Target

HEAD = b"HTTP/1.1 %d x\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n"
Answer = Callable[[dict[str, object]], tuple[int, list[str]]]


def text(piece: str) -> str:
    return json.dumps({"choices": [{"text": piece}], "usage": None})


def whole(body: dict[str, object]) -> tuple[int, list[str]]:
    """Two pieces of text, one without any, the usage."""
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
    return 200, [text("a"), text("b"), text(""), usage, "[DONE]"]


async def against(
    answer: Answer, concurrency: int, enough: Callable[[Load], bool]
) -> tuple[Load, list[dict[str, object]]]:
    """The load after `enough`, or when it ends by itself, and the bodies that came. Raises what it raises."""
    bodies: list[dict[str, object]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        status, events = answer(bodies[-1])
        writer.write(HEAD % status + b"".join(f"data: {event}\n\n".encode() for event in events))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = Target(f"http://127.0.0.1:{port}", "key", "m", vocabulary=50)
        load = Load(target, Shape(prompt=7, new=10), concurrency, time.monotonic)
        task = asyncio.create_task(load.run())
        while not task.done() and not enough(load):
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return load, bodies


def test_each_client_asks_again_as_soon_as_it_was_answered() -> None:
    load, bodies = asyncio.run(against(whole, 3, lambda load: len(load.streams) >= 12))
    done = [s for s in load.streams if s.tokens]
    assert len(done) >= 12
    assert all(len(s.arrivals) == 2 and s.start <= s.arrivals[0] for s in done)
    assert len({tuple(body["prompt"]) for body in bodies}) == len(bodies)  # type: ignore[arg-type]
    assert {len(body["prompt"]) for body in bodies} == {7}  # type: ignore[arg-type]
    assert all(0 <= token < 50 for body in bodies for token in body["prompt"])  # type: ignore[attr-defined]
    lengths = {int(str(body["max_tokens"])) for body in bodies}
    assert len(lengths) > 1
    assert lengths <= set(range(5, 16))


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_deployment_is_counted_and_asked_again(status: int) -> None:
    answers = iter([(status, []), (status, [])])
    load, _ = asyncio.run(
        against(
            lambda body: next(answers, None) or whole(body), 1, lambda load: any(s.tokens for s in load.streams)
        )
    )
    assert len(load.refused) == 2


def test_an_error_ends_the_measurement_with_its_reason() -> None:
    with pytest.raises(ExahpcError, match=r"HTTP 400.*too long"):
        asyncio.run(against(lambda _: (400, ["prompt is too long"]), 4, lambda _: False))
    broken = json.dumps({"error": {"message": "replica died"}})
    with pytest.raises(ExahpcError, match="replica died"):
        asyncio.run(against(lambda _: (200, [text("a"), broken]), 2, lambda _: False))


def test_an_endpoint_that_is_gone_is_named() -> None:
    load = Load(Target("http://127.0.0.1:1", "key", "m", 50), Shape(1, 1), 2, time.monotonic)
    with pytest.raises(LinkError, match=r"127\.0\.0\.1:1 broke off"):
        asyncio.run(load.run())


def test_what_was_seen_of_an_unfinished_answer_is_kept() -> None:
    load, _ = asyncio.run(
        against(lambda _: (200, [text("a")] * 3), 1, lambda load: any(s.arrivals for s in load.streams))
    )
    assert (len(load.streams[0].arrivals), load.streams[0].tokens) == (3, 0)
