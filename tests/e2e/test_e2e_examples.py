"""The examples of commands that need a living deployment, as their help shows them: `laptop`, of jobs/laptop.toml.

Home and working directory are a temporary folder, with this repository's jobs/ and a tiny model where that file
looks for one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.launch import rollout
from exahpc.wire import messages as m
from tests.examples import ROOT, runnable
from tests.live import Live, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

FOUR_NODES = """
name = "four-nodes"
[model]
path = "~/.cache/exahpc/models/smollm2"
dtype = "float32"
[[pool]]
name = "short"
max_sequences = 4
[[pool]]
name = "long"
[launcher]
kind = "local"
"""
"""jobs/four-nodes.toml names partition, account and modules of a site; here it is one of this machine."""


FEWER = {"replicas = 2": "replicas = 1", "replicas_per_task = 2": "replicas_per_task = 1"}
"""In jobs/laptop.toml: each start of a replica takes seconds."""


class Desk:
    """Somebody who types examples."""

    def __init__(self, folder: Path, tiny: Path) -> None:
        self.path = folder
        shutil.copytree(ROOT / "jobs", folder / "jobs")
        (folder / "jobs" / "four-nodes.toml").write_text(FOUR_NODES)
        laptop = folder / "jobs" / "laptop.toml"
        for two, one in FEWER.items():
            assert two in laptop.read_text()
            laptop.write_text(laptop.read_text().replace(f"\n{two}\n", f"\n{one}\n"))
        models = folder / ".cache" / "exahpc" / "models"
        models.mkdir(parents=True)
        (models / "smollm2").symlink_to(tiny)
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kernels = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        env = {"HOME": str(folder), "PATH": programs, "XDG_CACHE_HOME": kernels}
        self.live = Live(folder / ".exahpc", "laptop", env)

    def begin(self, example: str) -> subprocess.Popen[str]:
        """Ctrl-C reaches it, also where these tests run in the background of a shell, which ignores that."""
        return subprocess.Popen(
            shlex.split(runnable(example, self.path)), cwd=self.path, env=self.live.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def run(self, example: str, code: int = 0) -> str:
        """Its standard output."""
        return self.end(self.begin(example), code)

    def end(self, running: subprocess.Popen[str], code: int = 0) -> str:
        try:
            out, err = running.communicate(timeout=120)
        finally:
            running.kill()
        assert running.returncode == code, (
            f"{running.args}: {running.returncode}\n{out}\n{err}\n{self.live.tail()}"
        )
        return out


@pytest.fixture(scope="module")
def desk(tiny: Path) -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="exahpc-e2e-") as folder:
        desk = Desk(Path(folder), tiny)
        try:
            out = desk.run("exahpc up jobs/laptop.toml")
            assert out.splitlines()[1:] == [desk.live.key], "the URL, then the key"
            yield desk
        finally:
            desk.live.run("down", "laptop", "--seconds", "0", check=False)
        until("every process of the deployment is gone", lambda: not processes_of(desk.path), 20)


def test_what_is_there(desk: Desk) -> None:
    assert desk.run("exahpc status").startswith("laptop\t1/1 ready\tsmollm2\t")
    assert json.loads(desk.run("exahpc status laptop --json"))["ready"] == 1
    (url,) = desk.run("exahpc url laptop").splitlines()
    assert url in desk.run("exahpc url laptop --all")
    assert desk.run("exahpc key laptop").strip() == desk.live.key
    told = json.loads(desk.live.run("url", "laptop", "--all", "--json").stdout)
    assert (told["url"], told["model"], {one["url"] for one in told["entries"]}) == (url, "smollm2", {url})
    (one,) = json.loads(desk.live.run("status", "--json").stdout)
    assert (one["name"], one["ready"], one["wanted"]) == ("laptop", 1, 1)
    assert "laptop" in desk.run("exahpc top laptop")
    assert json.loads(desk.run("exahpc top laptop --json"))["tasks"]
    assert "replica" in desk.run("exahpc logs laptop")
    desk.run("exahpc doctor jobs/laptop.toml")


def test_what_is_asked(desk: Desk) -> None:
    assert desk.run('exahpc chat laptop "What is a supercomputer?" --max-tokens 100').strip()
    desk.run("exahpc bench laptop --concurrency 8")


@pytest.mark.parametrize("example", ["exahpc tunnel laptop", "exahpc logs laptop head --follow"])
def test_what_goes_on_until_ctrl_c_ends_well_with_it(desk: Desk, example: str) -> None:
    running = desk.begin(example)
    assert running.stdout is not None
    assert running.stdout.readline().strip()
    running.send_signal(signal.SIGINT)
    desk.end(running)


def test_a_batch_of_ones_own(desk: Desk) -> None:
    desk.run("exahpc batch run jobs/sample.jsonl --deployment laptop -o results.h5")
    (told,) = json.loads(desk.run("exahpc batch status results.h5 --json"))
    assert (told["state"], told["ok"], told["failed"]) == ("finished", 12, 0)
    desk.run("exahpc batch export results.h5 -o results.jsonl")
    assert len((desk.path / "results.jsonl").read_text().splitlines()) == 12
    desk.run("exahpc batch retry-failed results.h5 --deployment laptop")


def test_a_batch_that_is_handed_over(desk: Desk) -> None:
    (desk.path / "results.h5").unlink(missing_ok=True)
    batch = desk.run("exahpc batch submit jobs/sample.jsonl --deployment laptop -o results.h5").strip()
    assert desk.run("exahpc batch watch results.h5").strip() == str(desk.path / "results.h5")
    (listed,) = json.loads(desk.run("exahpc batch list --json"))
    assert (listed["batch"], listed["state"]) == (batch, "completed")


def phase(desk: Desk) -> str:
    """Without a process for each look."""
    return rollout.tell(desk.live.folder, m.RolloutQuery()).phase


def test_a_version_comes_goes_and_is_given_up(desk: Desk) -> None:
    start = "exahpc rollout start laptop jobs/laptop.toml --label v2"
    with (desk.path / "jobs" / "laptop.toml").open("a") as file:
        file.write("\n[limits]\nmax_tokens_default = 9\n")
    running = desk.begin(start)
    until("it has begun", lambda: phase(desk) != "idle", 30)
    assert json.loads(desk.run("exahpc rollout status laptop --json"))["tasks"] == 1
    desk.run("exahpc rollout promote laptop")
    assert desk.end(running).strip() == "v2"
    assert desk.run("exahpc rollout rollback laptop").strip() == "base"
    running = desk.begin(start)
    until("it has begun", lambda: phase(desk) not in ("idle", "done", "reverted"), 30)
    assert desk.run("exahpc rollout abort laptop").strip() == "base"
    desk.end(running, code=1)


def test_which_shape_is_best(desk: Desk) -> None:
    desk.run("exahpc sweep jobs/four-nodes.toml --pool short --concurrency 8,32 --slo ttft=1s,tbt=100ms")
    assert json.loads((desk.path / "sweep-four-nodes" / "sweep.json").read_text())["trials"]


def test_what_was_measured(desk: Desk) -> None:
    """Late in this module: the first row is there after ten seconds."""
    until("a row is kept", lambda: any((desk.live.folder.path / "history").glob("*")), 60)
    rows = json.loads(desk.run("exahpc history laptop --json"))
    assert {"time", "tokens", "requests"} <= rows[0].keys()


def test_the_end(desk: Desk) -> None:
    desk.run("exahpc down laptop")
    assert not processes_of(desk.live.folder.path)
