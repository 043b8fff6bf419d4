"""Write deployment.md, commands.md and benchmarks.md beside this file (`make docs`). A test holds them fresh."""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from exahpc.cli import main as cli
from exahpc.cli.exits import COMMON
from exahpc.deployment import spec
from exahpc.deployment.families import FAMILIES
from exahpc.deployment.frozen import Frozen
from exahpc.deployment.rules import bounds_of

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "bench" / "results"
NOTE = "<!-- written by docs/reference/generate.py: change the code, then `make docs` -->"
SECTIONS = (
    ("top of the file", spec.Deployment),
    ("[model]", spec.Model),
    ("[[pool]]", spec.Pool),
    ("[pool.link]", spec.StageLinks),
    ("[head]", spec.Head),
    ("[slurm], [head.slurm], [pool.slurm]", spec.SlurmResources),
    ("[limits]", spec.Limits),
    ("[recovery]", spec.Recovery),
    ("[routing]", spec.Routing),
    ("[health]", spec.Health),
    ("[pool.scaling]", spec.Scaling),
    ("[walltime]", spec.Walltime),
    ("[rollout]", spec.Rollout),
    ("[budget]", spec.Budget),
    ("[alerts]", spec.Alerts),
    ("[launcher]", spec.Launcher),
)
MOST_SIDES = 4
WORDS = {str: "string", int: "whole number", float: "number", bool: "true or false"}


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Docstring below each field of a class, on one line."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for here, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            found[here.target.id] = text
    return found


def type_words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Frozen):
        return "table"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        inner = arguments[0]
        if inner is int:
            return "list of whole numbers"
        return "tables" if isinstance(inner, type) and issubclass(inner, Frozen) else "list of strings"
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_words(a) for a in arguments if a is not type(None))
    return WORDS[kind]


def default_words(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default
    if isinstance(value, Frozen) or value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def range_words(kind: type[Any], name: str) -> str:
    low, high = bounds_of(kind, name)
    if low is None:
        return ""
    return f"{low:,g} or more" if high is None else f"{low:,g} to {high:,g}".replace(",", " ")


def deployment_page() -> str:
    lines = [
        "# The deployment file",
        "",
        NOTE,
        "",
        "TOML, read once and strictly: an unknown key is an error, and all problems are told at once.",
        "A relative `model.path` counts from the file's folder; `exahpc up` expands its `~` and `$VARIABLES`.",
        "A key of `[pool.slurm]` or `[head.slurm]` replaces the one of `[slurm]`.",
        "",
        'With `launcher.kind = "local"` the head is placed on this machine and bound to 127.0.0.1 unless written',
        "otherwise.",
    ]
    for title, kind in SECTIONS:
        docs = field_docs(kind)
        lines += ["", f"## {title}", ""]
        lines += ["| key | type | default | range | meaning |", "|---|---|---|---|---|"]
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            cells = (
                f"`{name}`",
                type_words(field.type),
                default_words(field),
                range_words(kind, name),
                docs[field.name].replace("|", "\\|"),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def walk(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """(name, help text) of a command and all below it."""
    with click.Context(command, info_name=path.split()[-1], parent=parent, **command.context_settings) as context:
        context.terminal_width = 100
        yield path, command.get_help(context).replace("\b", "")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, f"{path} {name}", context)


def commands_page() -> str:
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in COMMON.items()),
    ]
    for path, text in walk(cli, "exahpc", None):
        lines += ["", f"## {path}", "", "```", text, "```"]
    return "\n".join(lines) + "\n"


def comparison_table(comparison: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each case; with many sides, a row for each side instead. Columns that are empty are left out."""
    sides = dict.fromkeys(key for row in comparison.values() for key in row if key not in ("number", "ratio"))
    table = [["case", "number", *sides, "ratio"]]
    for case, row in comparison.items():
        number = row.get("number", "").replace("_", " ")
        table.append([case, number, *(figure(row.get(side)) for side in sides), figure(row.get("ratio"), 2)])
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    texts = 1 + (columns[1][0] == "number")
    if len(sides) > MOST_SIDES:
        table, texts = [list(column) for column in columns], 1
    else:
        table = [list(cells) for cells in zip(*columns, strict=True)]
    first, *others = [f"| {' | '.join(cells)} |" for cells in table]
    return [first, "|" + "---|" * texts + "---:|" * (len(table[0]) - texts), *others]


def figure(value: object, digits: int = 1) -> str:
    """Enough digits to compare: small numbers need them behind the point."""
    if isinstance(value, bool | str) or value is None:
        return "" if value is None else str(value)
    assert isinstance(value, int | float)
    if 0 < abs(value) < 10 and digits == 1:
        return f"{value:.3g}"
    return f"{value:,.{0 if value >= 1000 else digits}f}"


def benchmarks_page() -> str:
    lines = [
        "# Benchmarks",
        "",
        NOTE,
        "",
        "Each was run with `make bench-NAME`: both sides in one run, interleaved; medians. All runs stand in",
        "`bench/results/NAME.json`. Machines are noisy: the ratio says more than the figures. Rivals run",
        "in environments of their own in `.cache`, made at the first run from `bench/rivals/*.txt`.",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        machine, versions = result["machine"], result["versions"]
        what = result["what"][0].upper() + result["what"][1:]
        lines += ["", f"## {result['name']}", "", f"{what}.", ""]
        lines += comparison_table(result["comparison"])
        if Path(__file__).with_name(f"{path.stem}.svg").exists():  # the site shows files below docs/ only
            lines += ["", f"![{result['name']}]({path.stem}.svg)"]
        lines += ["", *(f"- {note}" for note in result["notes"])]
        lines.append(
            f"- {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {result['date'][:10]}"
        )
        lines.append(f"- {', '.join(f'{package} {version}' for package, version in versions.items())}")
    return "\n".join(lines) + "\n"


def architectures_page() -> str:
    lines = [
        "# Architectures",
        "",
        NOTE,
        "",
        "Model families that are served. Each gives in float32, token by token, what Hugging Face's `generate`",
        "gives: on one rank, tensor parallel, pipelined, and both (`tests/mpi`). `exahpc up` refuses all others.",
        "",
        "| family | `model_type` | for instance | run by | notes |",
        "|---|---|---|---|---|",
    ]
    for kind, family in FAMILIES.items():
        path = "fast decoder" if family.fast else "Hugging Face's forward"
        lines.append(f"| {family.name} | `{kind}` | {family.example} | {path} | {family.limits} |")
    lines += [
        "",
        "For all of them:",
        "",
        "- `tensor_parallel`: at most the model's key/value heads; they need not divide evenly.",
        "- `pipeline_parallel`: at most the model's layers. Stages are cut by work, the output layer counted.",
        "- Sliding windows, tied and untied output layers, rope types `default`, `linear`, `llama3` and `yarn`.",
        "  `dynamic` and `longrope` are refused, since they rotate keys of one sequence in two ways.",
        "- Weights: `*.safetensors` in bfloat16, float16 or float32, named as in the model's own checkpoints.",
        "  Those that were quantized by others (`quantization_config`) are refused.",
        "- Mixtures of experts: experts are split over the tensor-parallel ranks like other matrices.",
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "deployment.md": deployment_page,
    "commands.md": commands_page,
    "architectures.md": architectures_page,
    "benchmarks.md": benchmarks_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
        print(HERE / name)
