"""`exahpc chat`: one question, answered on the terminal as it is generated."""

from __future__ import annotations

import json
import ssl

import click
import httpx

from exahpc.cli.common import deployment_argument, first_key, live_endpoint, opened, readable
from exahpc.errors import ExahpcError, LinkError


@click.command()
@deployment_argument()
@click.argument("question", callback=readable)
@click.option("--system", callback=readable, help="A system message in front of the question.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer, in tokens.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, help="Same seed, same answer.")
def chat(
    name: str, question: str, system: str | None, max_tokens: int | None, temperature: float, seed: int | None
) -> None:
    """Ask NAME a QUESTION and stream the answer."""
    folder, deployment = opened(name)
    endpoint = live_endpoint(folder)
    messages = [{"role": "system", "content": system}] if system else []
    body = {
        "model": deployment.served_name,
        "messages": [*messages, {"role": "user", "content": question}],
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": seed,
        "stream": True,
    }
    verify = ssl.create_default_context(cafile=endpoint.ca) if endpoint.ca else True
    headers = {"Authorization": f"Bearer {first_key(folder)}"}
    sent = {key: value for key, value in body.items() if value is not None}
    patience = httpx.Timeout(10.0, read=300.0)
    try:
        with (
            httpx.Client(verify=verify, timeout=patience, trust_env=False) as client,
            client.stream("POST", f"{endpoint.url}/chat/completions", json=sent, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                raise ExahpcError(f"HTTP {answer.status_code}: {_message(answer.text)}")
            _show(answer)
    except httpx.HTTPError as error:
        raise LinkError(
            f"{endpoint.url} broke off: {error or type(error).__name__}; exahpc status {name}"
        ) from None


def _show(answer: httpx.Response) -> None:
    """Print the deltas of a stream. Raises ExahpcError on an error event, or when the stream ends early."""
    for line in answer.iter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            click.echo()
            return
        event = json.loads(data)
        if "error" in event:
            click.echo()
            raise ExahpcError(_message(data))
        for choice in event.get("choices", []):
            click.echo(choice.get("delta", {}).get("content") or "", nl=False)
    click.echo()
    raise ExahpcError("the answer was cut off")


def _message(text: str) -> str:
    """The message of an error body of OpenAI's shape, else the text itself."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500] or "no reason given"
