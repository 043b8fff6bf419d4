"""Entries beside an agent: a port of their own, the same certificates and keys, an end that costs no request."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from exahpc.wire.folder import runtime_directory
from tests.unit.entry.conftest import KEY, Own, Running
from tests.unit.entry.stubs import text_of


@pytest.fixture
def beside(own: Own) -> Iterator[list[Running]]:
    """Two beside agent a/0, while the head's own entry runs on the same node."""
    made = [Running(own.folder, index, "a/0") for index in (0, 1)]
    try:
        for entry in made:
            entry.start()
        yield made
    finally:
        for entry in made:
            entry.stop(signal.SIGKILL)


def urls(own: Own) -> list[str]:
    """Where the entries beside agents are, by their hellos, in the order of these."""
    return [hello.url for hello in own.fleet.hellos if hello.node]


def client(url: str, **options: object) -> openai.OpenAI:
    http = httpx.Client(timeout=30.0, **({"verify": False} | options))  # type: ignore[arg-type]
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, http_client=http)


def test_they_share_a_port_that_is_not_the_heads_and_keep_it(own: Own, beside: list[Running]) -> None:
    first, second = beside
    second.until(lambda: len(urls(own)) == 2)
    assert {hello.node for hello in own.fleet.hellos} == {"", socket.gethostname()}
    (url,) = set(urls(own))
    endpoint = own.folder.endpoint()
    assert endpoint is not None
    assert endpoint.url != url
    assert endpoint.url == own.entry.base + "/v1"
    os.kill(first.pid, signal.SIGKILL)
    first.stop()
    first.start().until(lambda: len(urls(own)) == 3)
    assert set(urls(own)) == {url}


def test_after_term_a_running_stream_is_finished_and_no_connection_is_taken(
    own: Own, beside: list[Running]
) -> None:
    beside[1].until(lambda: len(urls(own)) == 2)
    beside[1].until(lambda: httpx.get(urls(own)[0].replace("v1", "health"), verify=False).json()["ready"] == 2)
    for agent in own.fleet.agents.values():
        agent.interval = 0.5  # the stream cannot end while we look
    chunks = iter(client(urls(own)[0]).completions.create(model="tiny", prompt="x", max_tokens=60, stream=True))
    first = next(chunks).choices[0].text
    for entry in beside:
        os.kill(entry.pid, signal.SIGTERM)
    parts = urlsplit(urls(own)[0])

    def closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((str(parts.hostname), int(parts.port or 0))) != 0

    own.entry.until(closed)
    for agent in own.fleet.agents.values():
        agent.interval = 0.001
    assert first + "".join(c.choices[0].text for c in chunks) == text_of(0, 60)
    assert [entry.stop() for entry in beside] == [0, 0]
    assert not list(runtime_directory(own.folder.path, socket.gethostname()).glob("entry-a-0.*"))


@pytest.mark.parametrize("own", [{"head": 'tls = "on"'}], indirect=True)
def test_the_deployments_authority_vouches_for_them_and_their_keys_stay_on_the_node(
    own: Own, beside: list[Running]
) -> None:
    beside[1].until(lambda: len(urls(own)) == 2)
    secrets = own.folder.path / "secrets"
    trust = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
    for url in (urls(own)[0], urls(own)[0].replace("127.0.0.1", "localhost")):
        assert client(url, verify=trust).models.list().data[0].id == "tiny"
    keys = {path.name for path in secrets.iterdir()}
    assert not any("a-0" in name for name in keys)
    assert len(list(runtime_directory(own.folder.path, socket.gethostname()).glob("entry-a-0.*.key"))) == 2
