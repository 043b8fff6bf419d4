"""Memory-mapped access to a Hugging Face checkpoint: replicas of a node share one copy in the page cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from exahpc.errors import DeploymentError, StateError
from exahpc.models.checkpoint import SCALE


class Checkpoint:
    """Tensors of a (possibly sharded) safetensors folder, by name. Values are views of the mapped file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        self._names: dict[str, set[str]] = {}
        self._int8: list[tuple[torch.Tensor, torch.Tensor]] = []
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
            self._names[name] = set(self._open[name].keys())
        return self._open[name]

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __getitem__(self, name: str) -> torch.Tensor:
        """int8 for a matrix in INT8 form, whose scales `scales` knows from then on."""
        if name not in self._where:
            raise DeploymentError(f"model.path = {str(self._folder)!r} lacks the tensor {name!r}: is it complete?")
        where = self._where[name]
        tensor: torch.Tensor = self._file(where).get_tensor(name)
        if name + SCALE in self._names[where]:  # an index need not name it
            self._int8.append((tensor, self._file(where).get_tensor(name + SCALE)))
        return tensor

    @property
    def int8(self) -> bool:
        """Whether any matrix read so far is INT8."""
        return bool(self._int8)

    def give_scales(self, body: nn.Module, dtype: torch.dtype) -> None:
        """Let each module with an INT8 matrix have the scales of its rows, the buffer `weight_scale`, and know the
        model's number format, `model_dtype`.

        After AutoTP, which knows nothing of scales. Raises StateError where it copied the matrix.
        """
        for name, module in body.named_modules():
            weight = module._parameters.get("weight")
            if weight is None or weight.dtype != torch.int8:
                continue
            found = self.scales(weight)
            if found is None:
                raise StateError(
                    f"{name}: its INT8 matrix is no view of the checkpoint: which scales belong to it?"
                )
            module.register_buffer("weight_scale", found, persistent=False)
            module.model_dtype = dtype

    def scales(self, part: torch.Tensor) -> torch.Tensor | None:
        """Scales [rows of `part`], float32, of an INT8 matrix or a view of some of its rows or columns.

        Found by its place in memory: whoever split the matrix (AutoTP, for one) need not know of scales. None for
        what is no view of an INT8 matrix of this checkpoint.
        """
        for whole, scale in self._int8:
            offset = part.data_ptr() - whole.data_ptr()
            if 0 <= offset < whole.numel() and part.dtype == whole.dtype:
                first = offset // whole.shape[1]
                return scale[first : first + part.shape[0]]
        return None
