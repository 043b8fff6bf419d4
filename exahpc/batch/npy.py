"""NumPy files that grow while they are written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exahpc.errors import BatchError


class NpyWriter:
    """A new .npy file of one dimension; the header is filled in at the end, when the number of items is known."""

    def __init__(self, path: Path, dtype: np.dtype[np.void]) -> None:
        path.unlink(missing_ok=True)
        self.path, self._dtype = path, dtype
        self._file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
        self.items = 0
        self._header(1 << 50)
        self._start = self._file.tell()

    def _header(self, items: int) -> None:
        # NumPy pads the header for growth of the first axis, so a smaller number never makes it longer
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (items,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: npt.NDArray[np.void]) -> None:
        self._file.write(values.tobytes())
        self.items += len(values)

    def close(self) -> None:
        """Make it whole and durable."""
        self._file.seek(0)
        self._header(self.items)
        if self._file.tell() != self._start:
            raise BatchError("NumPy changed the layout of .npy headers: report this version of NumPy")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def read(self, first: int, last: int) -> npt.NDArray[np.void]:
        """Items [first, last) of the closed file; a copy, so that memory does not grow with what was looked at."""
        offset = self._start + first * self._dtype.itemsize
        return np.fromfile(self.path, self._dtype, last - first, offset=offset)
