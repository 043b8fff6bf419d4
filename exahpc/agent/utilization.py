"""How busy and how full the accelerators of a step are, seen from outside: a hung step could not tell.

NVIDIA's driver tells it by process (`nvidia-smi`), AMD's in /sys; without either it is the processor share of the
step's processes, and the share of the node's memory in use. A driver may hang as well: it is asked by a thread
that nobody waits for.
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
from typing import NamedTuple

from exahpc.agent import processes

_KFD = Path("/sys/class/kfd/kfd")
_DRM = Path("/sys/class/drm")
_MEMINFO = Path("/proc/meminfo")
_ASK_SECONDS = 10.0


class Use(NamedTuple):
    """Of a step's devices (0..1); None where nobody can tell. full: of their memory, whoever holds it."""

    busy: float | None
    full: float | None


class Gauge:
    """Looks now and then; `share` is what was seen last. cores: processors that one replica may use here."""

    def __init__(self, cores: int) -> None:
        self._cores = max(1, cores)
        self._shares: dict[int, float] = {}
        self._full: dict[int, float] = {}
        self._before: dict[str, tuple[float, float]] = {}  # socket -> (when, processor seconds)
        self._pids: dict[str, list[int]] = {}
        self._thread: threading.Thread | None = None

    def share(self, slot: int) -> float:
        """0..1, or -1 where nobody can tell."""
        return self._shares.get(slot, -1.0)

    def full(self, slot: int) -> float:
        """Of the memory that it has, as it was when it worked last: 0..1, or -1 where nobody can tell."""
        return self._full.get(slot, -1.0)

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
            use = Use(self._processors(socket, pids), node_memory()) if devices is None else devices(pids)
            if use.busy is None:
                shares.pop(slot, None)
            else:
                shares[slot] = round(min(1.0, use.busy), 2)
            if use.full is not None:
                self._full[slot] = round(use.full, 2)
        self._before = {socket: seen for socket, seen in self._before.items() if socket in self._pids}
        self._shares = shares

    def _processors(self, socket: str, pids: Iterable[int]) -> float | None:
        """Share of the processors since the last look; None at the first one."""
        now, used = time.monotonic(), processes.processor_seconds(pids)
        then, before = self._before.get(socket, (now, 0.0))
        self._before[socket] = now, used
        return (used - before) / (now - then) / self._cores if now > then else None


def accelerators() -> Callable[[Sequence[int]], Use] | None:
    """A function from a step's processes to the use of their devices; None on a node without any."""
    if shutil.which("nvidia-smi"):
        uses = _nvidia("compute-apps=pid,gpu_uuid", 2)
        told = _nvidia("gpu=uuid,utilization.gpu,memory.used,memory.total", 4)
        busy = {uuid: float(value) / 100 for uuid, value, _, _ in told if value.isdigit()}
        full = {
            uuid: int(used) / int(all_of) for uuid, _, used, all_of in told if used.isdigit() and all_of.isdigit()
        }
        pairs = [(int(pid), uuid) for pid, uuid in uses if pid.isdigit()]

        def use(pids: Sequence[int]) -> Use:
            mine = [uuid for pid, uuid in pairs if pid in pids]
            return Use(mean(map(busy.get, mine)), mean(map(full.get, mine)))

        return use
    if (_KFD / "proc").is_dir():
        return _amd_use
    return None


def node_memory() -> float | None:
    """Share of this node's memory that is not available."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return 1 - int(fields["MemAvailable"].split()[0]) / int(fields["MemTotal"].split()[0])
    return None


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _nvidia(query: str, width: int) -> list[list[str]]:
    """Rows of so many fields; none when the driver does not answer."""
    argv = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)
        rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
        return [row for row in rows if len(row) == width]
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


def _amd_use(pids: Iterable[int]) -> Use:
    cards = [_DRM / f"renderD{minor}" / "device" for minor in _amd_minors(pids)]
    full = ((_number(card / "mem_info_vram_used"), _number(card / "mem_info_vram_total")) for card in cards)
    busy = (_number(card / "gpu_busy_percent") for card in cards)
    return Use(
        mean(None if share is None else share / 100 for share in busy),
        mean(None if used is None or not total else used / total for used, total in full),
    )


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
