"""Examples of commands whose help has none of its own: shown at the end of their help, and tried by a test."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": ("exahpc up jobs/laptop.toml --dry-run", "exahpc up jobs/laptop.toml"),
    "status": ("exahpc status", "exahpc status laptop --json"),
    "url": ("exahpc url laptop", "exahpc url laptop --all"),
    "key": ("exahpc key laptop",),
    "tunnel": ("exahpc tunnel laptop",),
    "chat": ('exahpc chat laptop "What is a supercomputer?" --max-tokens 100',),
    "logs": ("exahpc logs laptop", "exahpc logs laptop head --follow"),
    "top": ("exahpc top laptop", "exahpc top laptop --json"),
    "history": ("exahpc history laptop --json",),
    "down": ("exahpc down laptop",),
    "watch": ("exahpc watch many",),
    "batch run": (
        "exahpc batch run jobs/sample.jsonl --deployment laptop -o results.h5",
        "exahpc batch run 'inputs/*.jsonl.gz' --model /models/Llama-3.1-8B --nodes 4 -o results.h5",
    ),
    "batch check": ("exahpc batch check jobs/sample.jsonl",),
    "batch status": ("exahpc batch status results.h5 --json",),
    "batch errors": ("exahpc batch errors results.h5",),
    "batch retry-failed": ("exahpc batch retry-failed results.h5 --deployment laptop",),
    "batch export": ("exahpc batch export results.h5 -o results.jsonl",),
    "batch compact": ("exahpc batch compact results.h5.parts",),
    "batch cancel": ("exahpc batch cancel results.h5",),
    "batch submit": ("exahpc batch submit jobs/sample.jsonl --deployment laptop -o results.h5",),
    "batch list": ("exahpc batch list --json",),
    "batch watch": ("exahpc batch watch results.h5",),
    "model fetch": ("exahpc model fetch smollm2",),
    "model list": ("exahpc model list",),
    "model convert": ("exahpc model convert /models/Llama-3.1-8B /scratch/me/llama-int8 --int8",),
    "model seal": ("exahpc model seal /models/Llama-3.1-8B",),
    "rollout start": ("exahpc rollout start laptop jobs/laptop.toml --label v2",),
    "rollout status": ("exahpc rollout status laptop --json",),
    "rollout promote": ("exahpc rollout promote laptop",),
    "rollout abort": ("exahpc rollout abort laptop",),
    "rollout rollback": ("exahpc rollout rollback laptop",),
    "curve": ("exahpc curve laptop -o curve",),
    "bench": ("exahpc bench laptop --concurrency 8",),
    "ladder": (
        "exahpc ladder jobs/four-nodes.toml --pool short --nodes 1,2,4 --concurrency 64",
        "exahpc ladder jobs/four-nodes.toml --pool short --nodes 1,2,4 --rate 20 --simulate",
    ),
    "sweep": ("exahpc sweep jobs/four-nodes.toml --pool short --concurrency 8,32 --slo ttft=1s,tbt=100ms",),
    "simulate": ("exahpc simulate jobs/many-nodes.toml",),
}
"""Words after `exahpc` -> lines."""


def shown(command: click.Command, path: str) -> click.Command:
    """The same command, with its examples and those of all below it at the end of the help."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            shown(inner, f"{path} {name}")
    lines = EXAMPLES.get(path)
    block = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
    if block and block not in (command.epilog or ""):
        command.epilog = f"{block}\n\n{command.epilog}" if command.epilog else block
    return command
