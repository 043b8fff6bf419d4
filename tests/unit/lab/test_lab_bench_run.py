"""The load client against a server of this process that answers at once, and against one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from aiohttp import web

from exahpc.errors import DeploymentError, ExahpcError
from exahpc.lab.bench import source
from exahpc.lab.bench.events import Lines, told
from exahpc.lab.bench.lengths import Lengths, parsed
from exahpc.lab.bench.run import measure, processes_for
from exahpc.lab.bench.source import Source
from exahpc.lab.bench.wish import Load, Target, Wish
from exahpc.lab.bench.worker import moments

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """bodies: what was asked, in order."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.keys: set[str] = set()
        self.paths: set[str] = set()
        self.answer: Callable[[web.Request, dict[str, object]], Awaitable[web.StreamResponse]] = stream
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers["Authorization"])
        self.paths.add(request.path)
        return await self.answer(request, body)


async def stream(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
    """A piece for each token."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    tokens = int(str(body["max_tokens"]))
    for _ in range(tokens):
        await response.write(b'data: {"choices":[{"text":"x","index":0}]}\n\n')
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})
    await response.write(f"data: {usage}\n\ndata: [DONE]\n\n".encode())
    return response


@pytest.fixture
def server() -> Iterator[Server]:
    found, loop, ready = Server(), asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/{path:.*}", found.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        ready.set()

    def run() -> None:
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    yield found
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def wish(server: Server, load: Load, **more: object) -> Wish:
    target = Target(server.url, "m", 100)
    short: dict[str, object] = {"ramp": 0.2, "seconds": 1.0, "drain": 30.0}
    return Wish(target, load, Lengths("fixed", 8), Lengths("fixed", 5), **(short | more))  # type: ignore[arg-type]


def test_a_closed_loop_asks_on_and_on_and_counts_what_usage_tells(server: Server) -> None:
    found = measure(wish(server, Load(concurrency=3)), "secret", 2)
    assert found.ok == found.requests > 3
    assert (found.new, found.prompt, found.client.processes) == (5.0, 7.0, 2)
    assert found.tokens_per_second > 0
    assert server.keys == {"Bearer secret"}
    assert server.paths == {"/v1/completions"}
    body = server.bodies[0]
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["prompt"]) == 8  # type: ignore[arg-type]


def test_whole_answers_of_chats_have_no_first_token(server: Server) -> None:
    async def whole(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        usage = {"prompt_tokens": 7, "completion_tokens": 5}
        return web.json_response({"choices": [{"message": {"content": "xxxxx"}}], "usage": usage})

    server.answer = whole
    found = measure(wish(server, Load(rate=10.0, arrivals="fixed"), chat=True, stream=False), "k")
    assert found.ok == found.requests > 0
    assert (found.ttft.count, found.tbt.count) == (0, 0)
    assert found.e2e.count == found.ok
    assert server.paths == {"/v1/chat/completions"}
    assert server.bodies[0]["messages"][0]["role"] == "user"  # type: ignore[index]


def test_refusals_and_errors_within_a_stream_are_counted_and_told(server: Server) -> None:
    async def moody(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        match len(server.bodies) % 3:
            case 0:
                return web.json_response({"error": {"message": "no room"}}, status=503)
            case 1:
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b'data: {"error":{"message":"lost"}}\n\n')
                return response
            case _:
                return await stream(request, body)

    server.answer = moody
    found = measure(wish(server, Load(rate=30.0, arrivals="fixed")), "k")
    assert found.refused
    assert found.failed
    assert found.ok
    assert "HTTP 503: no room" in found.errors
    assert found.refused + found.failed + found.ok == found.requests


def test_an_endpoint_that_answers_nothing_is_an_error_with_its_words(server: Server) -> None:
    async def no(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "wrong key"}}, status=401)

    server.answer = no
    with pytest.raises(ExahpcError, match="401: wrong key"):
        measure(wish(server, Load(concurrency=1)), "k")


def test_an_answer_that_does_not_end_is_cut_off_after_the_drain_and_said_to_be_open(server: Server) -> None:
    async def slow(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        if len(server.bodies) % 2:
            return await stream(request, body)
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = slow
    found = measure(wish(server, Load(rate=10.0, arrivals="fixed"), drain=2.0), "k")
    assert found.open
    assert found.ok + found.open == found.requests


# --- without a server ----------------------------------------------------------------------------------------


def test_evenly_spaced_requests_of_several_processes_interleave() -> None:
    load = Load(rate=10.0, arrivals="fixed")
    times = sorted(
        time for number in range(3) for time in (next(found) for found in [moments(load, 0.0, number, 3, 1)])
    )
    assert times == pytest.approx([0.0, 0.1, 0.2])


def test_poisson_arrivals_of_several_processes_add_up_to_the_rate() -> None:
    def count(number: int) -> int:
        return sum(1 for _ in takewhile(lambda due: due < 100, moments(Load(rate=100.0), 0.0, number, 4, 1)))

    assert sum(map(count, range(4))) == pytest.approx(10_000, rel=0.05)


def test_the_same_seed_asks_the_same_and_processes_ask_different_things() -> None:
    asked = Wish(Target("u", "m", 50_000), Load(rate=1.0), parsed("uniform:4-9"), parsed("uniform:1-9"))
    assert Source(asked).body() == Source(asked).body() != Source(asked, 1, 2).body()


def test_prompts_of_a_file_are_dealt_to_the_processes_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\nthree\n")
    asked = Wish(
        Target("u", "m"), Load(rate=1.0), Lengths("fixed", 8), Lengths("fixed", 8), file=str(path), chat=False
    )
    sources = [Source(asked, number, 2) for number in (0, 1)]
    dealt = [json.loads(one.body())["prompt"] for one in sources for _ in range(2)]
    assert dealt == ["one", "three", "two", "one"]


def test_a_file_may_hold_batch_lines_and_its_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"body": {"messages": [{"role": "user", "content": "hi"}]}}, {"prompt": "plain"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = source.prompts(path)
    assert found == [[{"role": "user", "content": "hi"}], "plain"]
    with pytest.raises(DeploymentError, match="prompt 1 has messages: they need --chat"):
        source.check_form(found, False, "f")
    source.check_form(found, True, "f")
    for text, word in (
        ('{"x": 1}', "line 1: holds neither"),
        ("{", "line 1: begins like JSON"),
        ("", "no prompt"),
    ):
        path.write_text(text)
        with pytest.raises(DeploymentError, match=word):
            source.prompts(path)


def test_events_may_come_in_pieces() -> None:
    lines = Lines()
    assert [*lines.feed(b'data: {"a"'), *lines.feed(b": 1}\r\n\r\nda"), *lines.feed(b"ta: [DONE]\n")] == [
        b'{"a": 1}'
    ]
    assert lines.over


def test_a_refusal_that_is_no_json_is_told_as_it_is() -> None:
    assert told("<html>\n no </html>") == "<html> no </html>"


def test_a_load_gets_no_more_processes_than_it_needs() -> None:
    assert processes_for(Load(concurrency=4)) == 1
