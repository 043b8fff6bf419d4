"""`exahpc rollout`: what is refused before anything is told to a broker, and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from exahpc.cli import main
from exahpc.deployment import parse, versions
from exahpc.errors import DeploymentError, LinkError
from exahpc.launch import prepare, rollout
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

TOML = """
name = "d"
[model]
path = "/models/tiny"
dtype = "float32"
context = 512
[[pool]]
name = "a"
replicas = 2
[launcher]
kind = "local"
mpirun = "true"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Of a deployment whose model is good."""
    monkeypatch.setattr(prepare, "check_model", lambda _: {})
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path / "home"))
    file = tmp_path / "d.toml"
    file.write_text(TOML)
    made, _ = prepare.create(tmp_path / "home" / "d", prepare.read(file))
    return made


def status(phase: m.RolloutPhase = "idle", current: str = "", story: str = "") -> m.RolloutStatus:
    made = [m.VersionStatus(v, 1, 2, 0.5, 40, 2, 1, 0, 0.25, 0.0) for v in ("", "v2")]
    return m.RolloutStatus(current, phase, 7.0, 2, story, [] if phase == "idle" else made)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Answers in turn, the last one again and again; returns what was asked."""

    def answer(*answers: m.RolloutStatus | Exception) -> list[Any]:
        asked: list[Any] = []

        def tell(folder: Folder, message: m.Message) -> m.RolloutStatus:
            asked.append(message)
            found = answers[min(len(asked), len(answers)) - 1]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(rollout, "tell", tell)
        monkeypatch.setattr("time.sleep", lambda _: None)
        return asked

    return answer


def run(*argv: str | Path) -> Result:
    return CliRunner().invoke(main, ["rollout", *map(str, argv)])


def new(tmp_path: Path, more: str = "[limits]\nmax_tokens_default = 9\n") -> Path:
    file = tmp_path / "new.toml"
    file.write_text(TOML + more)
    return file


def test_a_version_is_checked_and_put_into_the_folder_before_the_broker_is_told(
    folder: Folder, broker: Callable[..., list[Any]], tmp_path: Path
) -> None:
    asked = broker(status(), status("canary"), status("widening"), status("done", "v2"))
    done = run("start", "d", new(tmp_path), "--label", "v2")
    assert done.exit_code == 0, done.output
    assert asked == [m.RolloutQuery(), m.RolloutStart("v2"), m.RolloutQuery(), m.RolloutQuery()]
    assert parse.load(folder.version_toml("v2")).limits.max_tokens_default == 9
    assert (folder.path / "versions" / "v2.toml").stat().st_mode & 0o777 == 0o600
    assert done.stdout.splitlines()[-1] == "v2"


def test_a_rollout_that_went_back_is_an_error_that_says_why(
    folder: Folder, broker: Callable[..., list[Any]], tmp_path: Path
) -> None:
    broker(status(), status("canary"), status("reverted", "", "9 of 50 requests failed"))
    done = run("start", "d", new(tmp_path), "--label", "v2")
    assert done.exit_code == 1
    assert "error: v2 is not in force: 9 of 50 requests failed" in done.output


def test_a_model_that_up_would_refuse_is_refused(
    folder: Folder, broker: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: Any) -> None:
        raise DeploymentError("model.path: damaged")

    monkeypatch.setattr(prepare, "check_model", damaged)
    asked = broker(status())
    done = run("start", "d", new(tmp_path), "--label", "v2")
    assert (done.exit_code, asked, folder.versions()) == (2, [], [])
    assert "model.path: damaged" in done.output


def test_the_default_label_is_a_hash_of_the_content_and_the_first_file_is_base(
    folder: Folder, tmp_path: Path
) -> None:
    base = parse.load(folder.toml)
    label = rollout.add(folder, rollout.read(base, new(tmp_path)), None)
    assert label == versions.label_of(folder.version_toml(label))
    folder.put_in_force(label)
    assert rollout.add(folder, rollout.read(base, new(tmp_path, "")), None) == ""
    assert rollout.known(folder, "base") == ""
    with pytest.raises(DeploymentError, match="this file is in force in d already"):
        rollout.add(folder, rollout.read(base, new(tmp_path)), "other")


def test_a_label_has_one_file(folder: Folder, tmp_path: Path) -> None:
    base = parse.load(folder.toml)
    nine = rollout.read(base, new(tmp_path))
    eight = rollout.read(base, new(tmp_path, "[limits]\nmax_tokens_default = 8\n"))
    assert rollout.add(folder, nine, "v2") == rollout.add(folder, nine, "v2") == "v2"
    with pytest.raises(DeploymentError, match="--label v2: another file has this label"):
        rollout.add(folder, eight, "v2")
    for bad in ("base", "", "a/b", "../x", "x" * 41):
        with pytest.raises(DeploymentError, match="--label"):
            rollout.add(folder, eight, bad)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("start", "nobody", "--label", "v2"), 2, 'no deployment "nobody"'),
        (("start", "d"), 2, "give FILE, or the --label of a known version"),
        (("start", "d", "--label", "v9"), 2, 'd has no version "v9"; there are: none'),
        (("status", "d"), 1, "d has no head: is it up?"),
        (("promote", "d"), 1, "d has no head"),
    ],
)
def test_a_mistake_is_one_line(folder: Folder, argv: tuple[str, ...], code: int, says: str) -> None:
    done = run(*argv)
    assert done.exit_code == code
    assert says in done.output


def test_without_a_broker_nothing_is_left_in_the_folder(folder: Folder, tmp_path: Path) -> None:
    done = run("start", "d", new(tmp_path))
    assert done.exit_code == 1
    assert folder.versions() == []


def test_what_the_broker_refuses_is_told(folder: Folder, broker: Callable[..., list[Any]]) -> None:
    broker(DeploymentError("the rollout to v2 is canary: promote it, abort it, or wait for its end"))
    done = run("abort", "d")
    assert done.exit_code == 2
    assert "error: the rollout to v2 is canary" in done.output


def test_a_refused_version_leaves_no_file_but_one_that_was_there_stays(
    folder: Folder, broker: Callable[..., list[Any]], tmp_path: Path
) -> None:
    refused = DeploymentError("no task has a ready replica")
    broker(status(), refused)
    assert run("start", "d", new(tmp_path), "--label", "v2").exit_code == 2
    assert folder.versions() == []
    folder.add_version("v2", folder.toml)
    broker(refused)
    assert run("start", "d", "--label", "v2").exit_code == 2
    assert folder.versions() == ["v2"]


@pytest.mark.parametrize(("end", "code"), [(status("done", "v2"), 0), (status("reverted", "", "a/0 was late"), 1)])
def test_who_promotes_may_wait_for_the_end(
    folder: Folder, broker: Callable[..., list[Any]], end: m.RolloutStatus, code: int
) -> None:
    asked = broker(status("judging"), status("widening"), end)
    assert run("promote", "d", "--wait").exit_code == code
    assert asked == [m.RolloutCommand("promote"), m.RolloutQuery(), m.RolloutQuery()]


def test_following_outlives_a_broker_that_restarts_but_not_one_that_is_gone(
    folder: Folder, broker: Callable[..., list[Any]]
) -> None:
    seconds = iter(range(1000))
    broker(status("canary"), LinkError("away"), LinkError("away"), status("done", "v2"))
    looks = rollout.follow(folder, lambda: next(seconds), lambda _: None)
    assert [look.phase for look in looks] == ["canary", "done"]
    broker(status("canary"), LinkError("away"))
    with pytest.raises(LinkError):
        list(rollout.follow(folder, lambda: next(seconds), lambda _: None))


def test_status_shows_both_versions_and_why(folder: Folder, broker: Callable[..., list[Any]]) -> None:
    broker(status("reverting", "", "9 of 50 requests failed"))
    done = run("status", "d")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == "in force: base"
    assert lines[1] == "rollout: reverting, tasks go back to the old version (since 7 s)"
    assert lines[2] == "9 of 50 requests failed"
    assert lines[4].split() == ["base", "1/2", "2", "50", "%", "42", "2", "1", "0", "250", "/", "0", "ms"]
    assert '"share": 0.5' in run("status", "d", "--json").output
