"""The official OpenAI client against a live local deployment."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import zmq

from exahpc.wire.link import FleetKey
from tests.live import Live, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def test_models_lists_the_served_model(local: Live) -> None:
    assert [model.id for model in local.client().models.list().data] == ["tiny"]


def test_streamed_text_equals_plain_text(local: Live) -> None:
    plain = local.client().completions.create(model="tiny", prompt="once", max_tokens=60, temperature=0)
    assert local.stream("once", 60) == plain.choices[0].text
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage is not None
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (4, 60)


def test_chat_streams_a_role_then_deltas_then_usage(local: Live) -> None:
    chunks = list(
        local.client().chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=30,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30
    plain = local.client().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=30, temperature=0
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content


@pytest.mark.case("B34")
def test_the_same_seed_gives_the_same_three_choices_on_every_replica(local: Live) -> None:
    def draw(number: int) -> list[str]:
        made = local.client().completions.create(
            model="tiny", prompt="seeded", max_tokens=100, temperature=0.5, seed=123, n=3
        )
        return [c.text for c in sorted(made.choices, key=lambda c: c.index)]

    before = local.tokens()
    first = draw(0)
    assert len(set(first)) == 3
    with ThreadPoolExecutor(6) as side_by_side:  # more than two replicas have places for
        assert all(again == first for again in side_by_side.map(draw, range(12)))
    until("every replica drew", lambda: all(count > before[key] for key, count in local.tokens().items()), 10)


@pytest.mark.case("B25")
def test_a_stop_string_cuts_streams_and_plain_answers_alike(local: Live) -> None:
    whole = local.stream("stop here", 80)
    stop = whole[30:34]
    cut = whole[: whole.index(stop)]
    assert local.stream("stop here", 80, stop=["@@never@@", stop]) == cut
    plain = local.client().completions.create(
        model="tiny", prompt="stop here", max_tokens=80, temperature=0, stop=["@@never@@", stop]
    )
    assert (plain.choices[0].text, plain.choices[0].finish_reason) == (cut, "stop")


@pytest.mark.case("B15", "B17", "B26", "B29")
@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [""]}, 400, "prompt"),
        ({"messages": []}, 400, "messages"),
        ({"prompt": "x", "echo": 1}, 400, "echo"),
        ({"prompt": "x", "n": 0}, 400, "n"),
        ({"prompt": "x", "n": 0, "stream": True}, 400, "n"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
        ({"prompt": "x" * 7000}, 400, "2048"),
        ({"prompt": "x", "model": "nobody"}, 404, "nobody"),
    ],
)
def test_a_bad_request_is_named_and_the_next_one_works(
    local: Live, body: dict[str, object], status: int, names: str
) -> None:
    path = "/chat/completions" if "messages" in body else "/completions"
    with pytest.raises(openai.APIStatusError) as caught:
        local.client().post(path, body={"model": "tiny", **body}, cast_to=httpx.Response)
    assert caught.value.status_code == status
    assert names in caught.value.message
    assert len(local.stream("fine", 5)) == 5


def settled(live: Live) -> bool:
    """Two looks, more than a beat apart (a beat may be older than what began): nothing runs, nothing grows."""
    before = live.tokens()
    time.sleep(2.5)
    return live.running() == 0 and live.tokens() == before


@pytest.mark.case("B30")
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_sequences(local: Live, stream: bool) -> None:
    endpoint = local.folder.endpoint()
    assert endpoint is not None
    body = {"model": "tiny", "prompt": "leaving", "max_tokens": 2000, "n": 4, "temperature": 0, "stream": stream}
    headers = {"Authorization": f"Bearer {local.key}"}
    before = sum(local.tokens().values())
    with httpx.Client() as client, contextlib.ExitStack() as answer:
        request = client.build_request("POST", f"{endpoint.url}/completions", json=body, headers=headers)
        if stream:
            found = client.send(request, stream=True)
            answer.callback(found.close)
            next(found.iter_raw())
        else:
            request.extensions["timeout"] = httpx.Timeout(0.5).as_dict()
            with pytest.raises(httpx.ReadTimeout):
                client.send(request)
    assert len(local.stream("next", 5)) == 5
    until("no sequence runs any more", lambda: settled(local), 30)
    assert 0 < sum(local.tokens().values()) - before < 4 * 2000, "all tokens were generated, for nobody"


def test_nobody_without_the_key_gets_anything(local: Live) -> None:
    endpoint = local.folder.endpoint()
    assert endpoint is not None
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {local.key}"}):
        for path in ("/v1/models", "/metrics"):
            answer = httpx.get(endpoint.url.removesuffix("/v1") + path, headers=headers)
            assert answer.status_code == 401
            assert "tiny" not in answer.text


def test_a_link_without_the_fleet_key_gets_no_byte(local: Live) -> None:
    record = local.folder.head()
    assert record is not None
    host, port = record.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        plain.settimeout(2)
        greeting = b""
        with contextlib.suppress(ConnectionResetError):
            greeting = plain.recv(4096)
    assert b"exahpc" not in greeting
    stranger = FleetKey.make()
    ctx = zmq.Context()
    sock = ctx.socket(zmq.DEALER)
    sock.linger = 0
    sock.curve_publickey, sock.curve_secretkey = stranger.public.encode(), stranger.secret.encode()
    sock.curve_serverkey = local.folder.fleet_key().public.encode()
    sock.connect(record.address)
    sock.send(b"\x91\xabStatusQuery")
    assert sock.poll(1500) == 0
    sock.close()
    ctx.term()


def test_no_secret_is_in_any_command_line_environment_or_log(local: Live) -> None:
    secrets = [local.key, local.folder.fleet_key().secret]
    local.stream("one more", 5)
    time.sleep(0.2)
    lines = processes_of(local.folder.path)
    assert lines
    for line in lines:
        pid = line.split()[0]
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            environment = ""
        assert not any(s in line or s in environment for s in secrets)
    for path in local.folder.path.rglob("*"):
        if path.is_file() and "secrets" not in path.parts:
            assert not any(s.encode() in path.read_bytes() for s in secrets), path
        assert path.stat().st_mode & 0o077 == 0, path
