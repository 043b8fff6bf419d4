"""What all benchmarks share: facts about the machine, and one JSON result with every run, medians and ratios."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory in GiB, kernel and Python, without the host's name."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_end": [round(x, 2) for x in os.getloadavg()],
    }


def commit() -> str:
    """Short commit id, "-dirty" when tracked files differ from it, "unknown" outside a checkout."""
    try:
        git = ("git", "-C", str(ROOT))
        head = (*git, "rev-parse", "--short=12", "HEAD")
        found = subprocess.run(head, capture_output=True, text=True, check=True)
        diff = subprocess.run((*git, "diff", "--quiet", "HEAD"), check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + ("-dirty" if diff.returncode else "")


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of distributions; "missing" for one that is not there."""

    def one(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "missing"

    return {package: one(package) for package in packages}


def median(runs: list[dict[str, Any]], side: str, case: str, key: str) -> float:
    """Median of `key` over the runs of one side ("exahpc" or a rival's name) in one case."""
    return statistics.median(run[key] for run in runs if run["side"] == side and run["case"] == case)


def compare(runs: list[dict[str, Any]], ours: str, rival: str, keys: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Medians and our median / the rival's for each case. keys: case -> the number to compare in it."""
    table: dict[str, dict[str, Any]] = {}
    for case, key in keys.items():
        a, b = median(runs, ours, case, key), median(runs, rival, case, key)
        table[case] = {"number": key, ours: a, rival: b, "ratio": round(a / b, 3) if b else None}
    return table


def table(runs: list[dict[str, Any]], ours: str, keys: dict[str, str], rival: str) -> dict[str, dict[str, Any]]:
    """Medians of all sides for each case; the ratio is ours / the best side whose name starts with `rival`.

    keys: case -> the number to compare in it, of which more is better. Sides stand in the order in which they ran.
    """
    found: dict[str, dict[str, Any]] = {}
    for case, key in keys.items():
        sides = dict.fromkeys(run["side"] for run in runs if run["case"] == case)
        medians = {side: median(runs, side, case, key) for side in sides}
        best = max((value for side, value in medians.items() if side.startswith(rival)), default=0.0)
        ratio = round(medians[ours] / best, 3) if best and ours in medians else None
        found[case] = {"number": key, **medians, "ratio": ratio}
    return found


def show(name: str, comparison: dict[str, dict[str, Any]]) -> None:
    """Print the medians."""
    for case, row in comparison.items():
        numbers = "  ".join(f"{key} {value:,.4g}" for key, value in row.items() if isinstance(value, float))
        unit = f" [{row['number']}]" if "number" in row else ""  # its keys say what they are
        print(f"{name} {case}{unit}: {numbers}")


def write(
    name: str,
    *,
    what: str,
    runs: list[dict[str, Any]],
    comparison: dict[str, dict[str, Any]],
    packages: dict[str, str],
    notes: tuple[str, ...] = (),
) -> Path:
    """Write bench/results/NAME.json and print the medians. Returns the file's path.

    runs: every run in the order it ran, each with "side" and "case"; comparison: from `compare`; notes: what a
    reader must know to judge the numbers (emulated parts, differences between the sides).
    """
    result = {
        "name": name,
        "what": what,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": packages,
        "notes": list(notes),
        "comparison": comparison,
        "runs": runs,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    show(name, comparison)
    print(f"written: {path.relative_to(ROOT)}")
    return path
