"""How busy the accelerators of a step are, seen from outside: a hung step could not tell.

NVIDIA's driver tells it by process (`nvidia-smi`), AMD's in /sys; without either it is the processor share of the
step's processes. A driver may hang as well: it is asked by a thread that nobody waits for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from exahpc.agent import processes

_KFD = Path("/sys/class/kfd/kfd")
_DRM = Path("/sys/class/drm")
_ASK_SECONDS = 10.0


class Gauge:
    """Looks now and then; `share` is what was seen last. cores: processors that one replica may use here."""

    def __init__(self, cores: int) -> None:
        self._cores = max(1, cores)
        self._shares: dict[int, float] = {}
        self._before: dict[str, tuple[float, float]] = {}  # socket -> (when, processor seconds)
        self._pids: dict[str, list[int]] = {}
        self._thread: threading.Thread | None = None

    def share(self, slot: int) -> float:
        """0..1, or -1 where nobody can tell."""
        return self._shares.get(slot, -1.0)

    def look(self, busy: Mapping[int, str]) -> None:
        """Measure the steps that have work, given by slot and socket. The others do nothing."""
        if self._thread is not None and self._thread.is_alive():
            return
        if busy or any(self._shares.values()):
            self._thread = threading.Thread(target=self.measure, args=(dict(busy),), daemon=True)
            self._thread.start()

    def measure(self, busy: Mapping[int, str]) -> None:
        """The same, in this thread."""
        self._pids = {socket: self._pids.get(socket) or processes.family(None, socket) for socket in busy.values()}
        shares = dict.fromkeys(self._shares, 0.0)
        devices = accelerators()
        for slot, socket in busy.items():
            pids = self._pids[socket]
            share = self._processors(socket, pids) if devices is None else devices(pids)
            if share is None:
                shares.pop(slot, None)
            else:
                shares[slot] = round(min(1.0, share), 2)
        self._before = {socket: seen for socket, seen in self._before.items() if socket in self._pids}
        self._shares = shares

    def _processors(self, socket: str, pids: Iterable[int]) -> float | None:
        """Share of the processors since the last look; None at the first one."""
        now, used = time.monotonic(), processes.processor_seconds(pids)
        then, before = self._before.get(socket, (now, 0.0))
        self._before[socket] = now, used
        return (used - before) / (now - then) / self._cores if now > then else None


def accelerators() -> Callable[[Sequence[int]], float | None] | None:
    """A function from a step's processes to the busy share of their devices; None on a node without any."""
    if shutil.which("nvidia-smi"):
        uses, busy = _nvidia("compute-apps=pid,gpu_uuid"), _nvidia("gpu=uuid,utilization.gpu")
        devices = {uuid: float(value) / 100 for uuid, value in busy if value.isdigit()}
        pairs = [(int(pid), uuid) for pid, uuid in uses if pid.isdigit()]
        return lambda pids: mean(devices.get(uuid) for pid, uuid in pairs if pid in pids)
    if (_KFD / "proc").is_dir():
        return lambda pids: mean(_amd(_DRM / f"renderD{minor}") for minor in _amd_minors(pids))
    return None


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _nvidia(query: str) -> list[list[str]]:
    """Rows of two fields; none when the driver does not answer."""
    argv = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)
        rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
        return [row for row in rows if len(row) == 2]
    return []


def _amd_minors(pids: Iterable[int]) -> set[str]:
    """Render devices that these processes hold memory of."""
    minors = {}
    for node in (_KFD / "topology" / "nodes").glob("*"):
        with contextlib.suppress(OSError, ValueError):
            properties = dict(line.split(maxsplit=1) for line in (node / "properties").read_text().splitlines())
            minors[(node / "gpu_id").read_text().strip()] = properties.get("drm_render_minor", "0")
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            names = os.listdir(_KFD / "proc" / str(pid))
            found |= {name.removeprefix("vram_") for name in names if name.startswith("vram_")}
    return {minors[gpu] for gpu in found if minors.get(gpu, "0") != "0"}


def _amd(card: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return int((card / "device" / "gpu_busy_percent").read_text()) / 100
    return None
