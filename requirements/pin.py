"""Write requirements/*.txt from what is installed: `make pin` in an environment that passes all tests.

Each file holds one group of pyproject.toml with everything it pulls in, minus what an earlier file holds.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
GROUPS = ("build", "base", "engine", "demo", "plot", "docs", "dev")
LEFT_OUT = {"exahpc", "pip", "setuptools", "wheel"}


def wanted() -> dict[str, list[str]]:
    """Direct requirements of each group."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    return {
        "build": [*project["build-system"]["requires"], "editables"],
        "base": project["project"]["dependencies"],
        **{name: extras[name] for name in ("engine", "demo", "plot", "docs", "dev")},
    }


def closure(lines: list[str]) -> dict[str, str]:
    """name -> version of these requirements and of all that they require here. Local labels (+cpu) are dropped:
    which build of torch is installed is the index's choice."""
    found: dict[str, str] = {}
    todo = [Requirement(line) for line in lines]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if name in found or name in LEFT_OUT:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{requirement} is not installed here: install it, test, and pin again") from None
        found[name] = re.sub(r"\+.*", "", installed.version)
        for line in installed.requires or []:
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                inner.marker = None
                todo.append(inner)
    return found


def main() -> None:
    seen: set[str] = set()
    for group in GROUPS:
        pins = {name: version for name, version in closure(wanted()[group]).items() if name not in seen}
        seen |= set(pins)
        lines = [f"# {group}: written by requirements/pin.py", *(f"{n}=={v}" for n, v in sorted(pins.items()))]
        (HERE / f"{group}.txt").write_text("\n".join(lines) + "\n")
        print(f"{group}.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
