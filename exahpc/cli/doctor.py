"""`exahpc doctor`: what this site can run, and what to do about the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exahpc.cli import exits
from exahpc.cli.common import json_text, notes, opened, slurm_client
from exahpc.deployment.spec import Deployment
from exahpc.launch import place, prepare
from exahpc.launch.doctor import run, submitted
from exahpc.launch.doctor.finding import CHECKS, GATES, Finding, Gate, Verdict, closes, open_until

_STYLES: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


@click.command(
    epilog="\b\nExit codes:\n    0  the gate is open\n    1  Slurm could not be asked, or gave no nodes\n"
    "    2  the command line or the deployment file is wrong\n    3  a finding keeps the gate closed"
)
@click.argument("deployment", required=False)
@click.option(
    "--inside", is_flag=True, help="On all nodes of the allocation that this runs in (salloc, a batch script)."
)
@click.option(
    "--nodes", type=click.IntRange(1, 100_000), help="Ask Slurm for so many nodes, and look at them too."
)
@click.option("--time", "limit", default="0:10:00", show_default=True, help="Of the job that --nodes asks for.")
@click.option(
    "--gate",
    type=click.Choice(GATES),
    default="single-node",
    show_default=True,
    help="Step of the tutorial that is to be taken next; decides the exit code.",
)
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
def doctor(deployment: str | None, inside: bool, nodes: int | None, limit: str, gate: Gate, as_json: bool) -> None:
    """Look whether DEPLOYMENT can run here, and at what size.

    DEPLOYMENT is a deployment file, or the name of a deployment. Without it only this machine and its Slurm are
    looked at. Nothing is changed: files are made and removed where deployments lie, and jobs only with --nodes.

    \b
    exahpc doctor
    exahpc doctor jobs/laptop.toml
    exahpc doctor jobs/four-nodes.toml --nodes 2 --gate few-nodes
    exahpc doctor jobs/many-nodes.toml --inside --gate 32 --json
    """
    if inside and nodes:
        raise click.UsageError(
            "--inside looks at the nodes that there are, --nodes asks for some: give one of them"
        )
    if (inside or nodes) and deployment is None:
        raise click.UsageError("--inside and --nodes need a DEPLOYMENT: its modules, MPI and resources")
    found = None if deployment is None else _read(deployment)
    if nodes and found is not None:
        client = slurm_client(found)
        if client is None:
            raise click.UsageError(
                f'--nodes: {deployment} has launcher.kind = "local": there are no nodes to ask for'
            )
        findings = submitted.on_nodes(found, place.home(), client, nodes, limit, lambda words: notes.print(words))
    elif inside and found is not None:
        findings = run.inside(found, place.home())
    else:
        findings = run.here(found, place.home())
    if as_json:
        shut = [finding.check for finding in findings if closes(finding, gate)]
        told = {"gate": gate, "open": not shut, "closed_by": shut, "open_until": open_until(findings)}
        click.echo(json_text({**told, "findings": findings}))
    else:
        _show(findings, gate)
    sys.exit(exits.NOT_WHOLE if any(closes(finding, gate) for finding in findings) else 0)


def _read(name: str) -> Deployment:
    if name.endswith(".toml") or Path(name).is_file():
        return prepare.read(Path(name))
    return opened(name)[1]


def _show(findings: list[Finding], gate: Gate) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found"):
        table.add_column(title, overflow="fold")
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict == "skipped":
            skipped.setdefault(finding.detail, []).append(CHECKS[finding.check].title)
            continue
        shut = closes(finding, gate)
        words = Text(finding.detail)
        if finding.remedy and finding.verdict != "ok":
            words.append(f"\n-> {finding.remedy}", style="italic")
        style = _STYLES[finding.verdict] + (" reverse" if shut else "")
        table.add_row(CHECKS[finding.check].title, Text(finding.verdict, style=style), words)
    Console().print(table)
    for why, titles in skipped.items():
        click.echo(f"\nNot looked at ({why}): {'; '.join(titles)}")
    last, shut_by = open_until(findings), [one.check for one in findings if closes(one, gate)]
    click.echo(f"\nGate {gate}: " + (f"closed by {', '.join(shut_by)}" if shut_by else "open"))
    click.echo(f"Open so far: {', '.join(GATES[: GATES.index(last) + 1]) if last else 'none'}")
