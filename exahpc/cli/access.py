"""`exahpc url` and `exahpc key`: how clients reach a deployment."""

from __future__ import annotations

import shlex
from typing import Any

import click

from exahpc.cli.common import deployment_argument, first_key, json_text, live_endpoint, notes, opened
from exahpc.errors import LinkError
from exahpc.launch import ready


@click.command()
@deployment_argument()
@click.option(
    "--all", "every", is_flag=True, help="Every entry, one a line with its node; those beside agents too."
)
@click.option(
    "--json", "as_json", is_flag=True, help="URL, model and certificate as JSON; with --all the entries."
)
def url(name: str, every: bool, as_json: bool) -> None:
    """Print the endpoint of NAME, and how to use it.

    With --all, lines of "URL<tab>NODE": the head's entries first (they share a port), then those beside agents.
    """
    folder, deployment = opened(name)
    endpoint = live_endpoint(folder)
    told: dict[str, Any] = {"url": endpoint.url, "model": deployment.served_name, "ca": endpoint.ca}
    if every:
        reply = ready.look(folder)
        if reply is None:
            raise LinkError(f"no broker of {name} answers: `exahpc status {name}` tells more")
        entries = list(dict.fromkeys((entry.url, entry.node or "head") for entry in reply.entries))
        if as_json:
            click.echo(json_text({**told, "entries": [{"url": at, "node": node} for at, node in entries]}))
            return
        for at, node in entries:
            click.echo(f"{at}\t{node}")
        return
    if as_json:
        click.echo(json_text(told))
        return
    click.echo(endpoint.url)
    show_usage(endpoint.url, deployment.served_name, f"exahpc key {shlex.quote(name)}", endpoint.ca)


def show_usage(url: str, model: str | None, key: str, ca: str | None) -> None:
    """How clients use an endpoint. model: None where it is not known; key: command that prints an API key; ca:
    path of the certificate to trust."""
    trust = f"--cacert {shlex.quote(ca)} " if ca else ""
    lines = ["", "# curl", f'curl {trust}-H "Authorization: Bearer $({key})" \\']
    if model is None:
        lines.append(f"  {url}/models")
    else:
        body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        lines.append(f"  -H 'Content-Type: application/json' -d '{body}' {url}/chat/completions")
    lines += ["", "# the openai client", f"export OPENAI_BASE_URL={url} OPENAI_API_KEY=$({key})"]
    if ca:
        lines.append(f"export SSL_CERT_FILE={shlex.quote(ca)}")
    notes.print("\n".join(lines), markup=False, soft_wrap=True)


@click.command()
@deployment_argument()
def key(name: str) -> None:
    """Print an API key of NAME.

    All keys are in secrets/api_keys of the deployment's folder, one a line ("label:key"). Entries read
    the file again when it changes: add a line to admit, remove one to shut out.
    """
    folder, _ = opened(name)
    click.echo(first_key(folder))
