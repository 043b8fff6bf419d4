"""Models and references are built once a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mpi_helpers import HERE, KINDS, generate, wanted

from tests.families import tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mpi)
            item.add_marker(pytest.mark.timeout(400))  # ranks that share few cores start slowly


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one checkpoint a model, and reference.json: name -> tokens of each prompt."""
    root = tmp_path_factory.mktemp("models")
    reference = {}
    for name in KINDS:
        tiny(name, root / name)
        reference[name] = generate(root / name, wanted(name))
    (root / "reference.json").write_text(json.dumps(reference))
    return root


@pytest.fixture(scope="session")
def reference(models: Path) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = json.loads((models / "reference.json").read_text())
    return found
