"""What this site's Slurm is set up to do, from `scontrol show config`."""

from __future__ import annotations

import functools
import re

from exahpc.errors import SlurmError
from exahpc.slurm.process import ask

_LINE = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)


def parse_config(text: str) -> dict[str, str]:
    """Keys and values of `scontrol show config`; "(null)" is ""."""
    return {key: "" if value == "(null)" else value for key, value in _LINE.findall(text)}


def holds_code(codes: str, code: int) -> bool:
    """Whether a list of exit codes such as "75,100-110" names `code`."""
    for item in codes.split(","):
        first, _, last = item.strip().partition("-")
        if first.isdigit() and int(first) <= code <= int(last if last.isdigit() else first):
            return True
    return False


@functools.cache
def config() -> dict[str, str]:
    """The site's configuration, asked once. Raises SlurmError when it cannot be asked."""
    answer = ask(("scontrol", "show", "config"))
    if not answer.ok:
        raise answer.failure("the site's configuration is not to be had")
    return parse_config(answer.out)


def has_requeue_exit(code: int) -> bool:
    """Whether a job that ends with `code` is requeued by Slurm itself. False when Slurm cannot be asked: then an
    explicit requeue is tried, which does no harm."""
    try:
        return holds_code(config().get("RequeueExit", ""), code)
    except SlurmError:
        return False


def max_array_size() -> int | None:
    """Tasks that a job array may have; None when Slurm does not say."""
    try:
        told = config().get("MaxArraySize", "")
    except SlurmError:
        return None
    return int(told) if told.isdigit() else None


def version() -> str:
    """Of the site's Slurm, "22.05.8"; "" when there is none to ask."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", ask(("sbatch", "--version")).out)
    except SlurmError:
        return ""
    return found[0] if found else ""
