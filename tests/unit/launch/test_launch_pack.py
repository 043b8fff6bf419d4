"""A packed environment: whole, movable, unpacked once a node."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from exahpc.deployment.spec import Deployment, Launcher, Model, Pool
from exahpc.errors import DeploymentError
from exahpc.launch.pack import FORMS, pack
from exahpc.slurm import here, scripts
from exahpc.slurm.submission import doctor_submission, head_submission, pool_submission

SITE = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
SUPERVISE = scripts.directory() / "supervise.sh"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with an editable installation of ours and one other module."""
    prefix = tmp_path_factory.mktemp("made") / "env"
    venv.create(prefix, symlinks=True)
    (prefix / SITE / "other.py").write_text("where = __file__\n")
    (prefix / SITE / "_editable_impl_exahpc.pth").write_text("/a/checkout\n")
    return prefix


@pytest.fixture(scope="module")
def packed(made: Path) -> Path:
    output = made.parent / "env.tar.gz"
    pack(output, prefix=made)
    return output


def unpack(file: Path, where: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = ["bash", str(SUPERVISE), "unpack", str(file), str(where), "env-1"]
    return subprocess.run(argv, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)


def copy_in(where: Path) -> Path:
    return where / f"exahpc-env-{os.getuid()}" / "env-1"


def test_python_of_the_copy_imports_from_the_copy(packed: Path, tmp_path: Path) -> None:
    assert unpack(packed, tmp_path).returncode == 0
    code = "import sys, other, exahpc; print(sys.prefix, other.where, exahpc.__file__, sep='\\n')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run(
        [copy_in(tmp_path) / "bin" / "python", "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    copy = str(copy_in(tmp_path))
    assert told[0] == copy
    assert all(path.startswith(copy) for path in told)


def test_the_batch_scripts_are_packed_and_links_to_a_checkout_are_not(packed: Path) -> None:
    with tarfile.open(packed) as tar:
        names = tar.getnames()
    assert {str(SITE / "exahpc" / "_scripts" / name) for name in scripts.NAMES} <= set(names)
    assert not [name for name in names if name.endswith(".pth") and "exahpc" in name]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_unpacked(made: Path, tmp_path: Path, form: str) -> None:
    output = tmp_path / f"env{form}"
    told = pack(output, ["*/other.py"], made)
    assert told.packed == output.stat().st_size
    done = unpack(output, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (copy_in(tmp_path) / SITE / "other.py").exists(), "it was left out"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_cannot_be_packed_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="no virtual environment"):
        pack(tmp_path / "env.tar", prefix=tmp_path)
    with pytest.raises(DeploymentError, match="end it with"):
        pack(tmp_path / "env.zip", prefix=made)


def test_of_many_that_come_at_once_one_unpacks(packed: Path, tmp_path: Path) -> None:
    argv = ["bash", str(SUPERVISE), "unpack", str(packed), str(tmp_path), "env-1"]
    coming = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    told = [one.communicate()[1] for one in coming]
    assert [one.returncode for one in coming] == [0] * 4, told
    assert sum("unpacked" in words for words in told) == 1


def test_a_cut_file_leaves_no_copy(packed: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(packed.read_bytes()[:5000])
    done = unpack(cut, tmp_path)
    assert done.returncode == 2
    assert "cannot be unpacked" in done.stderr
    assert [path.name for path in copy_in(tmp_path).parent.iterdir()] == ["lock"]


def test_old_copies_go_when_nobody_uses_them(packed: Path, tmp_path: Path) -> None:
    store = copy_in(tmp_path).parent
    for name in ("old", "fresh", "running"):
        (store / name).mkdir(parents=True)
        (store / name / "used").touch()
        if name != "fresh":
            os.utime(store / name / "used", (1, 1))
    runner = store / "running" / "program"
    runner.write_text("#!/bin/bash\necho ready\nread -r _\n")
    runner.chmod(0o700)
    with subprocess.Popen([runner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"ready\n"
        assert unpack(packed, tmp_path).returncode == 0
        user.communicate()
    assert {path.name for path in store.iterdir()} == {"lock", "env-1", "fresh", "running"}


def test_variables_are_filled_in_on_the_node(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "job-7").mkdir()
    place = Path("$BASE") / "job-${SLURM_JOB_ID}"
    done = unpack(packed, place, {"BASE": str(tmp_path), "SLURM_JOB_ID": "7"})
    assert done.returncode == 0, done.stderr
    assert copy_in(tmp_path / "job-7").is_dir()
    missing = unpack(packed, Path("$NOBODY_SET_THIS"))
    assert missing.returncode == 2
    assert "NOBODY_SET_THIS is not set" in missing.stderr


def test_every_job_of_a_deployment_runs_from_the_packed_environment(tmp_path: Path) -> None:
    pool = Pool(name="a")
    launcher = Launcher(environment="/s/e.tar.zst", environment_in="$TMPDIR")
    deployment = Deployment(name="t", model=Model(path="/m"), pool=(pool,), launcher=launcher)
    where = scripts.directory()
    for made in (
        head_submission(deployment, tmp_path, "p", where),
        pool_submission(deployment, pool, tmp_path, "p", where),
        doctor_submission(deployment, tmp_path, "p", where, nodes=1, time="5"),
    ):
        words = made.arguments
        assert words[words.index("--environment") :][:4] == (
            "--environment",
            "/s/e.tar.zst",
            "--environment-in",
            "$TMPDIR",
        )


def test_a_copys_own_scripts_are_not_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in scripts.NAMES:
        (tmp_path / name).touch()
    monkeypatch.setenv(scripts.GIVEN, str(tmp_path))
    assert scripts.directory() == tmp_path


def test_steps_are_started_by_what_started_python_in_the_job() -> None:
    assert here.interpreter({"EXAHPC_PYTHON": "/s/python-in-container"}) == "/s/python-in-container"
    assert here.interpreter({}) == sys.executable
