"""The supervisor scripts without Slurm, as the local launcher runs them, around a stand-in for Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exahpc.models.copies import PREFIX

SLURM = Path(__file__).parents[3] / "slurm"

PYTHON = """#!/bin/bash
# `-m MODULE ...`: notes what happens to it; the first agent starts a step in a session of its own
home={home} module=$2
echo "$module start ${{EXAHPC_WARNED:-}}" >>$home/events
echo $$ >$home/$module.pid
trap 'echo "$module TERM" >>$home/events; exit 0' TERM
if [ $module = exahpc.agent ] && [ ! -e $home/step.pid ]; then
    setsid bash -c 'echo $$ >$1/step.pid; exec sleep 300' _ $home &
fi
while [ ! -e $home/$module.end ]; do sleep 0.05; done
code=$(cat $home/$module.end); rm $home/$module.end
echo "$module end" >>$home/events
exit $code
"""


class Local:
    """A script in a session of its own, with what its children noted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "deployment"
        self.folder.mkdir()
        self.python = home / "python"
        self.python.write_text(PYTHON.format(home=home))
        self.python.chmod(0o755)
        self.script: subprocess.Popen[bytes] | None = None

    def run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        common = ("--folder", str(self.folder), "--python", str(self.python), "--scripts", str(SLURM))
        with open(self.home / "script.log", "ab") as log:
            self.script = subprocess.Popen(
                ("bash", str(SLURM / name), *common, *arguments), start_new_session=True, stdout=log, stderr=log
            )
        return self.script

    def events(self) -> list[str]:
        path = self.home / "events"
        return path.read_text().splitlines() if path.exists() else []

    def sees(self, words: str, times: int = 1) -> None:
        wait_for(lambda: sum(event.startswith(words) for event in self.events()) >= times, words)

    def pid(self, name: str) -> int:
        path = self.home / f"{name}.pid"
        wait_for(lambda: path.exists() and path.read_text().strip(), f"{name} runs")
        return int(path.read_text())

    def end(self, module: str, code: int) -> None:
        (self.home / f"{module}.end").write_text(f"{code}\n")

    def code(self) -> int:
        assert self.script is not None
        return self.script.wait(timeout=40)

    def left(self) -> list[str]:
        """Living processes that come from here."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if (
                    entry.name.isdigit()
                    and str(self.home).encode()
                    in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                ):
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
        return found


def wait_for(true: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until, f"not within 20 s: {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def catches(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path)
    yield made
    if made.script is not None and made.script.poll() is None:
        made.script.kill()
        made.script.wait()
    wait_for(lambda: not made.left(), f"nothing is left: {made.left()}")


def test_a_dead_agent_is_restarted_and_its_step_lives_on(local: Local) -> None:
    local.run("replica.sbatch", "--pool", "a", "--task", "3")
    step = local.pid("step")
    os.kill(local.pid("exahpc.agent"), signal.SIGKILL)
    local.sees("exahpc.agent start", 2)
    assert lives(step)
    local.end("exahpc.agent", 0)
    assert local.code() == 0
    assert not lives(step)
    assert (local.folder / "logs" / "a-3" / "agent.log").exists()


@pytest.mark.parametrize("code", [0, 75])
def test_the_agents_final_codes_are_the_scripts(local: Local, code: int) -> None:
    local.run("replica.sbatch", "--pool", "a", "--task", "0")
    step = local.pid("step")
    local.end("exahpc.agent", code)
    assert local.code() == code
    assert not lives(step)


def test_any_other_code_starts_the_agent_anew(local: Local) -> None:
    local.run("replica.sbatch", "--pool", "a", "--task", "0")
    local.sees("exahpc.agent start")
    local.end("exahpc.agent", 1)
    local.sees("exahpc.agent start", 2)


def test_a_script_that_is_killed_leaves_nothing_behind(local: Local) -> None:
    script = local.run("replica.sbatch", "--pool", "a", "--task", "0")
    step, agent = local.pid("step"), local.pid("exahpc.agent")
    script.kill()
    wait_for(lambda: not lives(step) and not lives(agent), "all are gone")


_MAPS = """
import mmap, sys, time
held = []
for path in sys.argv[1:]:
    with open(path, "r+b") as file:
        held.append(mmap.mmap(file.fileno(), 0))
print("mapped", flush=True)
time.sleep(600)
"""


def test_what_is_left_in_shared_memory_goes_but_weights_that_other_jobs_may_use_stay() -> None:
    name = uuid.uuid4().hex
    store = Path(f"/dev/shm/{PREFIX}test-{name}")
    store.mkdir()
    weights, left = store / "model.safetensors", Path(f"/dev/shm/test-{name}")
    try:
        for path in (weights, left):
            path.write_bytes(b"x" * 4096)
        mark = f"EXAHPC_TEST_MARK={name}"
        step = subprocess.Popen(
            [sys.executable, "-c", _MAPS, str(weights), str(left)],
            env={**os.environ, "EXAHPC_TEST_MARK": name},
            stdout=subprocess.PIPE,
        )
        assert step.stdout is not None
        assert step.stdout.readline() == b"mapped\n"
        reap = ["bash", str(SLURM / "supervise.sh"), "reap", mark, "1"]
        reaper = subprocess.Popen(reap, stdin=subprocess.DEVNULL)
        assert step.wait(60) == -signal.SIGTERM
        assert reaper.wait(60) == 0
        assert weights.exists()
        assert not left.exists()
    finally:
        shutil.rmtree(store)
        left.unlink(missing_ok=True)


def test_term_reaches_the_agent_and_is_waited_for(local: Local) -> None:
    script = local.run("replica.sbatch", "--pool", "a", "--task", "0")
    local.pid("step")
    script.terminate()
    assert local.code() == 0
    assert "exahpc.agent TERM" in local.events()


def test_an_agent_that_starts_after_the_walltime_warning_is_told(local: Local) -> None:
    script = local.run("replica.sbatch", "--pool", "a", "--task", "0")
    local.sees("exahpc.agent start")
    script.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    local.end("exahpc.agent", 1)
    local.sees("exahpc.agent start 1")


def test_broker_and_entries_are_kept_until_the_brokers_orderly_end(local: Local) -> None:
    local.run("head.sbatch", "--entries", "2")
    local.sees("exahpc.entry start", 2)
    os.kill(local.pid("exahpc.broker"), signal.SIGKILL)
    local.sees("exahpc.broker start", 2)
    os.kill(local.pid("exahpc.clerk"), signal.SIGKILL)
    local.sees("exahpc.clerk start", 2)
    local.end("exahpc.broker", 0)
    assert local.code() == 0
    assert local.events().count("exahpc.entry TERM") == 2
    assert local.events().count("exahpc.clerk TERM") == 1
    assert sorted(path.name for path in (local.folder / "logs" / "head").iterdir()) == [
        "broker.log",
        "clerk.log",
        "entry-0.log",
        "entry-1.log",
    ]


def test_the_first_task_keeps_the_head_and_lets_it_finish(local: Local) -> None:
    script = local.run("replica.sbatch", "--pool", "a", "--task", "0", "--with-head", "--entries", "1")
    local.sees("exahpc.broker start")
    local.sees("exahpc.entry start")
    local.end("exahpc.agent", 0)
    local.sees("exahpc.agent end")
    assert script.poll() is None
    local.end("exahpc.broker", 0)
    assert local.code() == 0


def test_other_tasks_keep_no_head(local: Local) -> None:
    local.run("replica.sbatch", "--pool", "a", "--task", "1", "--with-head", "--entries", "1")
    local.sees("exahpc.agent start")
    local.end("exahpc.agent", 0)
    assert local.code() == 0
    assert not any("broker" in event for event in local.events())


def test_entries_beside_an_agent_outlive_its_crash_and_end_after_its_end(local: Local) -> None:
    local.run("replica.sbatch", "--pool", "a", "--task", "3", "--node-entries", "2")
    local.sees("exahpc.entry start", 2)
    os.kill(local.pid("exahpc.agent"), signal.SIGKILL)
    local.sees("exahpc.agent start", 2)
    assert "exahpc.entry TERM" not in local.events()
    local.end("exahpc.agent", 75)
    assert local.code() == 75
    assert local.events()[-3:] == ["exahpc.agent end", "exahpc.entry TERM", "exahpc.entry TERM"]
    assert (local.folder / "logs" / "a-3" / "entry-1.log").exists()


def test_a_parked_task_waits_until_it_is_wanted_and_ends_with_the_deployment(local: Local) -> None:
    mark = local.home / "wanted" / "a.1"
    mark.parent.mkdir()
    script = local.run(
        "replica.sbatch", "--pool", "a", "--task", "1", "--node-entries", "1", "--wanted", str(mark)
    )
    for life in (1, 2):
        assert local.events().count("exahpc.agent start ") == life - 1
        mark.touch()
        local.sees("exahpc.agent start", life)
        local.sees("exahpc.entry start", life)
        mark.unlink()
        local.end("exahpc.agent", 0)  # it drained
        local.sees("exahpc.entry TERM", life)
    assert script.poll() is None
    mark.parent.rmdir()
    assert local.code() == 0


def test_a_parked_task_can_be_told_to_end(local: Local) -> None:
    (local.home / "wanted").mkdir()
    script = local.run(
        "replica.sbatch", "--pool", "a", "--task", "1", "--wanted", str(local.home / "wanted" / "a.1")
    )
    wait_for(lambda: catches(script.pid, signal.SIGTERM), "its signals are watched")
    script.terminate()
    assert local.code() == 0
    assert local.events() == []


def site_with_modules(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lmod and Environment Modules are found: a file that defines `module`."""
    (home / "site" / "init").mkdir(parents=True)
    (home / "site" / "init" / "bash").write_text(
        f'module() {{ echo "module $*" >>{home}/events; export LOADED="${{LOADED:-}}$2 "; [ "$2" != broken ]; }}\n'
    )
    monkeypatch.setenv("MODULESHOME", str(home / "site"))


@pytest.mark.parametrize("script", [("replica.sbatch", "--pool", "a", "--task", "0"), ("head.sbatch",)])
def test_modules_are_loaded_in_order_before_anything_starts(
    local: Local, monkeypatch: pytest.MonkeyPatch, script: tuple[str, ...]
) -> None:
    site_with_modules(local.home, monkeypatch)
    local.run(*script, "--module", "mpi/4", "--module", "x")
    process = "exahpc.agent" if "--pool" in script else "exahpc.broker"
    local.sees(f"{process} start")
    assert local.events()[:2] == ["module load mpi/4", "module load x"]
    environment = Path(f"/proc/{local.pid(process)}/environ").read_bytes().split(b"\0")
    assert b"LOADED=mpi/4 x " in environment
    local.end(process, 0)
    assert local.code() == 0


def test_a_module_that_does_not_load_ends_the_script_with_its_name(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_with_modules(local.home, monkeypatch)
    local.run("replica.sbatch", "--pool", "a", "--task", "0", "--module", "broken", "--module", "x")
    assert local.code() == 1
    assert "module load broken failed on" in (local.home / "script.log").read_text()
    assert local.events() == ["module load broken"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pool", "a"), "--task is needed"),
        (("--task", "0"), "--pool is needed"),
        (("--what", "0"), "unknown argument --what"),
        (("--pool", "a", "--task", "0", "--module", "gone/1"), "no 'module' command"),
    ],
)
def test_wrong_arguments_are_named(local: Local, arguments: tuple[str, ...], said: str) -> None:
    local.run("replica.sbatch", *arguments)
    assert local.code() in (1, 2)
    assert said in (local.home / "script.log").read_text()


def test_all_scripts_are_shellcheck_clean() -> None:
    scripts = [
        path for path in SLURM.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!/bin/bash")
    ]
    assert len(scripts) >= 6
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run((shellcheck, "-x", *scripts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
