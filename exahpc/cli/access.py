"""`exahpc url` and `exahpc key`: how clients reach a deployment."""

from __future__ import annotations

import shlex

import click

from exahpc.cli.common import deployment_argument, first_key, live_endpoint, notes, opened


@click.command()
@deployment_argument()
def url(name: str) -> None:
    """Print the endpoint of NAME, and how to use it."""
    folder, deployment = opened(name)
    endpoint = live_endpoint(folder)
    click.echo(endpoint.url)
    ca = f"--cacert {shlex.quote(endpoint.ca)} " if endpoint.ca else ""
    body = f'{{"model": "{deployment.served_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    lines = [
        "",
        "# curl",
        f'curl {ca}-H "Authorization: Bearer $(exahpc key {shlex.quote(name)})" \\',
        f"  -H 'Content-Type: application/json' -d '{body}' {endpoint.url}/chat/completions",
        "",
        "# the openai client",
        f"export OPENAI_BASE_URL={endpoint.url} OPENAI_API_KEY=$(exahpc key {shlex.quote(name)})",
    ]
    if endpoint.ca:
        lines.append(f"export SSL_CERT_FILE={shlex.quote(endpoint.ca)}")
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
