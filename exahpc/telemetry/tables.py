"""A table of numbers as plain HDF5: one dataset a column, and what it is as attributes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np


def write(path: Path, columns: Mapping[str, Sequence[float]], attributes: Mapping[str, str]) -> None:
    """Written beside and renamed, so that a reader finds all of it. Columns of whole numbers stay whole.

    Raises OSError when the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with h5py.File(beside, "w") as file:
            for name, values in columns.items():
                file[name] = np.asarray(values)
            for name, text in attributes.items():
                file.attrs[name] = text
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
