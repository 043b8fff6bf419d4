"""Slurm commands that say what a test tells them, on PATH, and remember how they were called."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

_PROGRAM = """#!{python} -IS
import json, sys
from pathlib import Path
home = Path({home!r})
name = {name!r}
with open(home / "calls", "a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
book = home / (name + ".json")
answers = json.loads(book.read_text()) if book.exists() else []
for number, (pattern, code, out, err) in enumerate(answers):
    if pattern in " ".join(sys.argv[1:]):
        if len([a for a in answers if a[0] == pattern]) > 1:
            del answers[number]
            book.write_text(json.dumps(answers))
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
sys.exit(0)
"""


class FakeSlurm:
    """`says(command, pattern, ...)`: the answers to calls whose arguments contain `pattern`, one after another;
    the last one stays."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "bin").mkdir()
        for name in ("sbatch", "squeue", "scontrol", "scancel"):
            program = home / "bin" / name
            program.write_text(_PROGRAM.format(python=sys.executable, home=str(home), name=name))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def says(self, command: str, pattern: str, out: str = "", *, code: int = 0, error: str = "") -> None:
        book = self.home / f"{command}.json"
        answers = json.loads(book.read_text()) if book.exists() else []
        answers.append([pattern, code, out, error])
        book.write_text(json.dumps(answers))

    def calls(self, command: str | None = None) -> list[list[str]]:
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if command in (None, call[0])]


def wide(
    job: str,
    state: str,
    *,
    restarts: int = 0,
    requeue: int = 1,
    nodes: str = "",
    reason: str = "None",
    end: str = "N/A",
) -> str:
    """One line as squeue --Format writes it."""
    return f"{job:<64}{state:<32}{restarts:<12}{requeue:<8}{end:<24}{nodes:<8192}{reason:<256}\n"
