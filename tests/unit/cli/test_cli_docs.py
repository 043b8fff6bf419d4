"""The reference says what the code does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["deployment.md", "commands.md", "benchmarks.md"])
def test_the_reference_is_fresh(name: str) -> None:
    # in a process of its own: click keeps a command's --help as the first caller in a process wanted it
    program = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['PAGES'][sys.argv[2]]())"
    argv = [sys.executable, "-c", program, str(REFERENCE / "generate.py"), name]
    made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert (REFERENCE / name).read_text() == made, "write it anew: make docs"


def test_every_key_of_the_deployment_file_is_explained(generate: ModuleType) -> None:
    missing = [
        f"{kind.__name__}.{key}"
        for _, kind in generate.SECTIONS
        for key, text in generate.field_docs(kind).items()
        if not text
    ]
    assert not missing


def links(page: Path) -> list[Path]:
    """What a page of ours points to inside this repository."""
    found = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    return [(page.parent / target).resolve() for target in found]


def test_every_link_between_our_pages_leads_somewhere() -> None:
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    assert [(page.name, target) for page in pages for target in links(page) if not target.exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    coming = [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            coming += links(page)
    assert set((ROOT / "docs").resolve().rglob("*.md")) <= seen
