"""Laws of the deployment's folder and of the messages."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from exahpc.errors import DeploymentError, LinkError
from exahpc.wire import folder as f
from exahpc.wire import messages as m


def test_everything_in_the_folder_is_private(tmp_path: Path) -> None:
    folder = f.Folder.create(tmp_path / "d", "name = 1")
    folder.publish_head(f.HeadRecord(1, "tcp://x:1", "x", 1))
    folder.publish_endpoint(f.Endpoint("http://x/v1", "x", 1, None))
    folder.claim_epoch()
    folder.claim_incarnation("a", "0")
    folder.logs("a-0", "agent.log").touch(0o600)
    for path in [tmp_path / "d", *(tmp_path / "d").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_second_up_keeps_the_secrets(tmp_path: Path) -> None:
    first = f.Folder.create(tmp_path / "d", "a").fleet_key()
    again = f.Folder.create(tmp_path / "d", "b")
    assert again.fleet_key() == first
    assert again.toml == "b"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = f.Folder.create(tmp_path / "d", "")
    (tmp_path / "d" / "secrets" / "fleet.json").chmod(0o644)
    with pytest.raises(LinkError, match="readable by others"):
        folder.fleet_key()


def test_a_folder_without_a_deployment_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="exahpc up"):
        _ = f.Folder(tmp_path).toml


def test_claims_grow_and_are_never_given_twice(tmp_path: Path) -> None:
    folder = f.Folder.create(tmp_path / "d", "")
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: folder.claim_epoch(), range(64)))
    assert sorted(numbers) == sorted(set(numbers))
    assert folder.claim_epoch() > max(numbers)
    assert folder.claim_incarnation("a", "1") == 1
    assert folder.claim_incarnation("a", "11") == 1
    (folder.path / "epochs" / ".nfs00000000deadbeef").touch()
    (folder.path / "epochs" / "12.bak").touch()
    assert folder.claim_epoch() > max(numbers) + 1


def test_a_reader_sees_the_old_record_or_the_new_one(tmp_path: Path) -> None:
    folder = f.Folder.create(tmp_path / "d", "")
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            folder.publish_head(f.HeadRecord(n, "tcp://" + "x" * (n % 500), "h", n))

    thread = threading.Thread(target=write)
    folder.publish_head(f.HeadRecord(0, "", "h", 0))
    thread.start()
    try:
        for _ in range(500):
            record = folder.head()
            assert record is not None
            assert record.epoch == record.pid
    finally:
        stop.set()
        thread.join()
    assert not [p for p in (tmp_path / "d").iterdir() if p.name.startswith(".head")]


def test_a_torn_or_missing_record_is_none(tmp_path: Path) -> None:
    folder = f.Folder.create(tmp_path / "d", "")
    assert folder.head() is None
    (tmp_path / "d" / "head.json").write_bytes(b'{"epoch":')
    assert folder.head() is None


def test_api_keys_have_names(tmp_path: Path) -> None:
    folder = f.Folder.create(tmp_path / "d", "")
    f.write_atomic(tmp_path / "d" / "secrets" / "api_keys", b"me:sk-1\n\nsk-2\n")
    assert folder.api_keys() == {"sk-1": "me", "sk-2": "key 3"}


def test_a_runtime_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    path = f.runtime_directory(tmp_path, "node")
    try:
        assert f.runtime_directory(tmp_path, "node") == path
        assert f.runtime_directory(tmp_path, "other") != path
        assert len({path, *(f.runtime_directory(tmp_path, "node", job) for job in ("7_0", "8_0"))}) == 3
        path.chmod(0o755)
        with pytest.raises(LinkError, match="private"):
            f.runtime_directory(tmp_path, "node")
    finally:
        path.rmdir()
        f.runtime_directory(tmp_path, "other").rmdir()
        for job in ("7_0", "8_0"):
            f.runtime_directory(tmp_path, "node", job).rmdir()


@pytest.mark.parametrize(
    ("union", "message"),
    [
        (
            m.EntryToAgent,
            m.Submit("r", 1, 2, 3, "chat", b"{}", True, 2**62, 5, [m.Resume(0, [1, 2], 3, True)], False),
        ),
        (m.AgentToEntry, m.Frames([m.Frame("r", 1, 0, 2, [3], 4, b"data", True)])),
        (m.AgentToEntry, m.Failed("r", 1, 500, "m", retry=True, own_exit=True)),
        (m.BrokerToEntry, m.FleetTable(1, 2, [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 1, 2, 0.5)])])),
        (m.ReplicaToAgent, m.Tokens([(1, 2)], [(1, "stop")])),
    ],
)
def test_a_message_comes_back_equal(union: object, message: m.Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) == message


def test_a_message_of_another_link_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(m.StopReplica()), type=m.EntryToAgent)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"state\.json"):
        f.write_atomic(tmp_path / "state.json", b"{}", durable=True)
    assert list(tmp_path.iterdir()) == []
