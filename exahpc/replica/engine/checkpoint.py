"""Memory-mapped access to a Hugging Face checkpoint: replicas of a node share one copy in the page cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from exahpc.errors import DeploymentError


class Checkpoint:
    """Tensors of a (possibly sharded) safetensors folder, by name. Values are views of the mapped file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self._where: dict[str, str] = json.loads(index.read_text())["weight_map"]
        elif (folder / "model.safetensors").exists():
            self._where = dict.fromkeys(self._file("model.safetensors").keys(), "model.safetensors")
        else:
            raise DeploymentError(f"model.path = {str(folder)!r} holds no safetensors: convert the checkpoint")

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = safe_open(self._folder / name, framework="pt", device="cpu")
        return self._open[name]

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._where:
            raise DeploymentError(f"model.path = {str(self._folder)!r} lacks the tensor {name!r}: is it complete?")
        tensor: torch.Tensor = self._file(self._where[name]).get_tensor(name)
        return tensor
