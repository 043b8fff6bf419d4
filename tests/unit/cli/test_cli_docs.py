"""The reference says what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["deployment.md", "commands.md"])
def test_the_reference_is_fresh(generate: ModuleType, name: str) -> None:
    assert (REFERENCE / name).read_text() == generate.PAGES[name](), "write it anew: make docs"


def test_every_key_of_the_deployment_file_is_explained(generate: ModuleType) -> None:
    missing = [
        f"{kind.__name__}.{key}"
        for _, kind in generate.SECTIONS
        for key, text in generate.field_docs(kind).items()
        if not text
    ]
    assert not missing


def test_every_link_between_our_pages_leads_somewhere() -> None:
    import re

    root = REFERENCE.parents[1]
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in (*root.glob("*.md"), *(root / "docs").rglob("*.md"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken
