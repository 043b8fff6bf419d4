"""How busy accelerators are, seen from outside, with a driver and a /sys that are made up."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from exahpc.agent import processes, utilization
from exahpc.agent.utilization import Gauge, accelerators


@pytest.fixture(autouse=True)
def no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(utilization, "_KFD", tmp_path / "kfd")
    monkeypatch.setattr(utilization, "_DRM", tmp_path / "drm")


def driver(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


def test_without_a_driver_it_is_the_processor_share_from_the_second_look_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used, now = [10.0, 13.0, 13.0, 90.0], [100.0, 102.0, 104.0, 106.0]
    monkeypatch.setattr(processes, "family", lambda session, socket: [1, 2])
    monkeypatch.setattr(processes, "processor_seconds", lambda pids: used.pop(0))
    monkeypatch.setattr(utilization.time, "monotonic", lambda: now.pop(0))
    gauge = Gauge(cores=2)
    assert gauge.share(0) == -1
    for share in (-1.0, 0.75, 0.0, 1.0):
        gauge.measure({0: "sock"})
        assert gauge.share(0) == share
    gauge.measure({})
    assert gauge.share(0) == 0.0, "an idle replica's devices are idle, for ever the same"


def test_processor_seconds_are_those_of_living_processes() -> None:
    mine = processes.processor_seconds([os.getpid()])
    assert 0 < mine <= sum(os.times()[:2]) + 0.02
    assert processes.processor_seconds([2**22 + 1]) == 0


def test_nvidia_tells_by_process_which_devices_a_step_uses(tmp_path: Path) -> None:
    driver(
        tmp_path,
        """case "$1" in
--query-compute-apps=pid,gpu_uuid) echo "41, GPU-a"; echo "42, GPU-b"; echo "50, GPU-c"; echo "51, GPU-d" ;;
--query-gpu=uuid,utilization.gpu,memory.used,memory.total) echo "GPU-a, 100, 20, 80"; echo "GPU-b, 40, 60, 80"
  echo "GPU-c, 0, 0, 80"; echo "GPU-d, [N/A], [N/A], 80" ;;
esac""",
    )
    devices = accelerators()
    assert devices is not None
    assert devices([41, 42]) == pytest.approx((0.7, 0.5))
    assert devices([50]) == (0.0, 0.0)
    assert devices([51]) == (None, None), "a device that does not say"
    assert devices([99]) == (None, None), "processes of another name space"


@pytest.mark.parametrize("text", ["echo 'NVIDIA-SMI has failed'; exit 9", "echo nonsense, more, words", "true"])
def test_a_driver_that_fails_makes_nobody_idle(tmp_path: Path, text: str) -> None:
    driver(tmp_path, text)
    gauge = Gauge(cores=1)
    gauge.measure({0: "sock"})
    assert gauge.share(0) == -1


def test_amd_tells_in_sys(tmp_path: Path) -> None:
    for node, (gpu, minor, busy) in enumerate([("0", "0", ""), ("111", "128", "30\n"), ("222", "129", "90\n")]):
        folder = tmp_path / "kfd" / "topology" / "nodes" / str(node)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{gpu}\n")
        (folder / "properties").write_text(f"cpu_cores_count 0\ndrm_render_minor {minor}\n")
        if busy:
            device = tmp_path / "drm" / f"renderD{minor}" / "device"
            device.mkdir(parents=True)
            (device / "gpu_busy_percent").write_text(busy)
            (device / "mem_info_vram_used").write_text(f"{minor}\n")
            (device / "mem_info_vram_total").write_text("256\n")
    for pid, gpu in ((7, "111"), (8, "222")):
        folder = tmp_path / "kfd" / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / f"vram_{gpu}").write_text("4096\n")
        (folder / "pasid").write_text("1\n")
    devices = accelerators()
    assert devices is not None
    assert devices([7]) == (0.3, 0.5)
    assert devices([7, 8]).busy == pytest.approx(0.6)
    assert devices([9]) == (None, None)


def test_the_memory_of_a_replica_stays_known_when_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    monkeypatch.setattr(utilization, "_MEMINFO", meminfo)
    monkeypatch.setattr(processes, "family", lambda session, socket: [1])
    gauge = Gauge(cores=1)
    assert gauge.full(0) == -1
    gauge.measure({0: "sock"})
    gauge.measure({})
    assert gauge.full(0) == 0.75
    meminfo.unlink()
    gauge.measure({0: "sock"})
    assert gauge.full(0) == 0.75, "nobody can tell: last known"


def test_a_driver_that_hangs_is_asked_by_one_thread_only_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, asked = threading.Event(), []

    def family(session: int | None, socket: str) -> list[int]:
        asked.append(socket)
        hangs.wait(60)
        return []

    monkeypatch.setattr(processes, "family", family)
    gauge = Gauge(cores=1)
    for _ in range(3):
        gauge.look({0: "sock"})
    hangs.set()
    assert gauge._thread is not None
    gauge._thread.join(60)
    assert asked == ["sock"]


def test_an_idle_agent_asks_nobody() -> None:
    gauge = Gauge(cores=1)
    gauge.look({})
    assert gauge._thread is None
