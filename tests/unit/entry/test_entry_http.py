"""The endpoint under the official client and under rude ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl

import httpx
import openai
import pytest

from exahpc.wire import messages as m
from exahpc.wire.folder import write_atomic
from tests.unit.entry.conftest import KEY, Own, Running
from tests.unit.entry.stubs import Fleet, text_of

pytestmark = pytest.mark.timeout(60)
ASK = {"model": "tiny", "prompt": "hi", "max_tokens": 20}


def stream(entry: Running, tokens: int = 20, **options: object) -> str:
    chunks = entry.client().completions.create(
        model="tiny", prompt="hi", max_tokens=tokens, stream=True, extra_body=options
    )
    return "".join(c.choices[0].text for c in chunks if c.choices)


def test_models_are_listed_and_retrieved(entry: Running) -> None:
    client = entry.client()
    assert [model.id for model in client.models.list().data] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_plain_answer_is_the_agents_bytes(entry: Running) -> None:
    made = entry.client().completions.create(model="tiny", prompt="hi", max_tokens=20, n=2)
    assert [c.text for c in made.choices] == [text_of(0, 20)] * 2
    assert made.usage is not None
    assert made.usage.completion_tokens == 40
    chat = entry.client().chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert chat.choices[0].message.content == text_of(0, 8)


def test_a_stream_is_the_agents_bytes(entry: Running) -> None:
    assert stream(entry) == text_of(0, 20)
    chunks = entry.client().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=9, stream=True
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text_of(0, 9)


def test_a_stream_says_that_nobody_may_buffer_it_and_ends_in_done(entry: Running) -> None:
    answer = entry.post("/v1/completions", json=ASK | {"stream": True})
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_nobody_without_a_key_learns_anything(entry: Running, fleet: Fleet) -> None:
    for path in ("/v1/models", "/v1/completions", "/v1/chat/completions", "/metrics", "/x"):
        for sent in (None, "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", KEY):
            headers = {} if sent is None else {"Authorization": sent}
            for answer in (entry.get(path, headers=headers), entry.post(path, headers=headers, json=ASK)):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert "tiny" not in answer.text
    assert not any(agent.submits for agent in fleet.agents.values())


def test_wrong_paths_and_methods_get_an_openai_error(entry: Running) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
    ):
        answer = entry.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_broken_json_is_a_400(entry: Running) -> None:
    for body in (b"", b"{", b"[1]", b"\xff\xfe", b'{"prompt": "a"'):
        answer = entry.post("/v1/completions", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model_is_a_404_that_names_both(entry: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody") as caught:
        entry.client().completions.create(model="nobody", prompt="x")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        entry.client().completions.create(model="n" * 100_000, prompt="x")
    assert len(str(caught.value)) < 1000


def test_a_client_may_name_a_version_and_gets_that_one_only(entry: Running, fleet: Fleet) -> None:
    fleet.agents[1].version = "v2"
    fleet.publish()
    client = entry.client()
    entry.until(lambda: [model.id for model in client.models.list().data] == ["tiny", "tiny@base", "tiny@v2"])
    assert client.models.retrieve("tiny@v2").id == "tiny@v2"
    for model, task in (("tiny@v2", 1), ("tiny@base", 0)):
        before = len(fleet.agents[task].submits)
        for _ in range(10):
            client.completions.create(model=model, prompt="x", max_tokens=1)
        assert len(fleet.agents[task].submits) == before + 10
    with pytest.raises(openai.NotFoundError, match="'tiny', 'tiny@base', 'tiny@v2'"):
        client.completions.create(model="tiny@v3", prompt="x")


@pytest.mark.parametrize("own", [{"limits": "max_body_bytes = 2000"}], indirect=True)
def test_a_body_over_the_limit_is_a_413_announced_or_not(own: Own) -> None:
    entry = own.entry
    large = json.dumps(ASK | {"prompt": "x" * 100_000}).encode()
    assert entry.post("/v1/completions", content=large).status_code == 413
    assert entry.post("/v1/completions", content=iter([large[:50_000], large[50_000:]])).status_code == 413
    assert stream(entry) == text_of(0, 20)


def test_an_agents_refusal_is_an_http_error_even_for_a_stream(entry: Running, fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.error = m.Failed("", 0, 400, "n must be at least 1", "invalid_request_error", "n", "bad")
    for streams in (False, True):
        with pytest.raises(openai.BadRequestError, match="n must be") as caught:
            entry.client().completions.create(model="tiny", prompt="x", n=0, stream=streams)
        assert caught.value.param == "n"


def test_a_broken_request_line_gets_an_openai_error_and_the_connection_closes(entry: Running) -> None:
    port = int(entry.base.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(b"NONSENSE\r\n\r\n")
        answer = sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'{"error":' in answer


def test_more_bytes_than_announced_do_not_reach_the_request(entry: Running, fleet: Fleet) -> None:
    body = json.dumps(ASK).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Length: {len(body)}\r\n"
    port = int(entry.base.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(head.encode() + b"\r\n" + body + b"garbage\r\n\r\n")
        sock.makefile("rb").read()
    bodies = [s.body for a in fleet.agents.values() for s in a.submits]
    assert all(sent == body for sent in bodies)


def test_health_needs_no_key_and_counts_replicas_that_can_be_reached(entry: Running, fleet: Fleet) -> None:
    answer = entry.get("/health", headers={})
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "ready": 2, "wanted": 2})
    for agent in fleet.agents.values():
        fleet.call(agent.close)
    entry.until(lambda: entry.get("/health", headers={}).status_code == 503)


def test_a_withdrawn_key_stops_working_and_a_new_one_starts(own: Own) -> None:
    entry = own.entry
    write_atomic(entry.folder.path / "secrets" / "api_keys", b"you:sk-other\n")
    other = {"Authorization": "Bearer sk-other"}
    entry.until(lambda: entry.get("/v1/models", headers=other).status_code == 200)
    assert entry.get("/v1/models").status_code == 401


def test_metrics_count_endings_and_tokens(entry: Running) -> None:
    stream(entry, 7)
    entry.get("/v1/nothing")
    assert entry.metric('exahpc_requests_total{ending="done"}') == 1
    assert entry.metric("exahpc_completion_tokens_total") == 7
    assert entry.metric("exahpc_replicas_ready") == 2


def test_the_entry_says_hello_and_beats(entry: Running, fleet: Fleet) -> None:
    hello = fleet.hellos[-1]
    assert (hello.index, hello.pid, hello.url) == (0, entry.pid, entry.base + "/v1")
    before = fleet.beats[-1].done if fleet.beats else 0
    stream(entry)
    entry.until(lambda: fleet.beats and fleet.beats[-1].done > before)


def test_term_finishes_running_streams_and_ends_with_0(own: Own) -> None:
    entry, fleet = own.entry, own.fleet
    for agent in fleet.agents.values():
        agent.interval = 0.02
    chunks = iter(entry.client().completions.create(model="tiny", prompt="x", max_tokens=50, stream=True))
    first = next(chunks).choices[0].text
    os.kill(entry.pid, signal.SIGTERM)
    assert first + "".join(c.choices[0].text for c in chunks) == text_of(0, 50)
    assert entry.stop() == 0


@pytest.mark.parametrize("own", [{"head": 'tls = "on"'}], indirect=True)
def test_with_tls_the_same_bytes_come_and_plain_http_gets_none(own: Own) -> None:
    endpoint = own.folder.endpoint()
    assert endpoint is not None
    assert endpoint.url.startswith("https://127.0.0.1:")
    assert endpoint.ca is not None
    trust = ssl.create_default_context(cafile=endpoint.ca)
    client = openai.OpenAI(
        base_url=endpoint.url, api_key=KEY, max_retries=0, http_client=httpx.Client(verify=trust, timeout=30.0)
    )
    chunks = client.completions.create(model="tiny", prompt="hi", max_tokens=50, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == text_of(0, 50)
    assert client.completions.create(model="tiny", prompt="hi", max_tokens=5).choices[0].text == text_of(0, 5)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(endpoint.url.replace("https", "http") + "/models", headers=own.entry.headers)
    with pytest.raises(httpx.ConnectError):
        httpx.get(endpoint.url + "/models", headers=own.entry.headers)


@pytest.mark.parametrize("own", [{"head": 'tls = "on"'}], indirect=True)
def test_an_idle_connection_does_not_keep_the_server_from_ending(own: Own) -> None:
    """Its client answers TLS's good-bye when it asks again, which may be never."""
    endpoint = own.folder.endpoint()
    assert endpoint is not None
    with httpx.Client(verify=ssl.create_default_context(cafile=endpoint.ca), headers=own.entry.headers) as idle:
        assert idle.get(f"{endpoint.url}/models").status_code == 200
        assert own.entry.stop() == 0
    assert "graceful shutdown exceeded" not in own.entry.log.read_text()


def test_no_secret_is_logged(entry: Running) -> None:
    stream(entry)
    entry.get("/v1/models", headers={"Authorization": "Bearer wrong-secret"})
    log = entry.log.read_text()
    assert KEY not in log
    assert "wrong-secret" not in log
    assert entry.folder.fleet_key().secret not in log
