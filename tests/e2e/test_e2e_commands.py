"""What a user types at a living deployment."""

from __future__ import annotations

import json

import pytest

from tests.live import Live

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def test_status_says_ready_in_words_and_as_json(local: Live) -> None:
    shown = local.run("status", "local").stdout
    assert "3/3 replicas ready" in shown
    assert "a/0" in shown
    assert "b/0" in shown
    told = json.loads(local.run("status", "local", "--json").stdout)
    assert (told["ready"], told["wanted"], len(told["entries"])) == (3, 3, 2)
    assert local.run("status").stdout.split("\t")[:2] == ["local", "3/3 ready"]


def test_url_and_key_are_all_that_a_client_needs(local: Live) -> None:
    endpoint = local.folder.endpoint()
    assert endpoint is not None
    found = local.run("url", "local")
    assert found.stdout == f"{endpoint.url}\n"
    assert "OPENAI_BASE_URL" in found.stderr
    assert local.key not in found.stdout + found.stderr
    assert local.run("key", "local").stdout == f"{local.key}\n"


def test_chat_streams_the_answer_that_the_client_gets(local: Live) -> None:
    made = local.client().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=30, temperature=0
    )
    assert (
        local.run("chat", "local", "hello", "--max-tokens", "30").stdout == f"{made.choices[0].message.content}\n"
    )


def test_logs_are_found_by_what_they_are_of(local: Live) -> None:
    files = local.run("logs", "local", "--list").stdout.splitlines()
    for part in ("head/broker.log", "head/entry-0.log", "head/entry-1.log", "a-0/agent.log", "b-0/agent.log"):
        assert any(file.endswith(part) for file in files), part
    assert any("a-0/replica-1." in file for file in files)
    shown = local.run("logs", "local", "broker", "-n", "1000").stdout
    assert "agents were here before" in shown


def test_a_living_deployment_is_not_started_again(local: Live) -> None:
    again = local.run("up", str(local.home / "local.toml"), check=False)
    assert (again.returncode, "local is up already" in again.stderr) == (2, True)
