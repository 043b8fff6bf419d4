"""Laws of a node's copies: one maker, whole or not at all, kept while used, gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exahpc.errors import DeploymentError
from exahpc.models import copies, manifest
from exahpc.models.copies import Held, Store, directory

KEY = "0123abcd"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def make(store: Store, key: str = KEY, data: bytes = b"weights") -> Held:
    claim = store.claim(key)
    assert claim is not None
    with claim:
        assert claim.ready() is None
        writer = claim.writer(len(data))
        writer.write("config.json", b"{}")
        writer.write("model.safetensors", data[:3])
        writer.write("model.safetensors", memoryview(data)[3:])
        return claim.publish(writer.done())


def found(store: Store, key: str = KEY) -> Held | None:
    claim = store.claim(key)
    assert claim is not None
    with claim:
        return claim.ready()


def test_what_was_made_is_found_by_the_next(store: Store) -> None:
    made = make(store)
    again = found(store)
    assert again is not None
    assert again.path == made.path
    assert (made.path / "model.safetensors").read_bytes() == b"weights"


def test_one_process_at_a_time_makes_a_copy_and_others_make_theirs(store: Store) -> None:
    claim = store.claim(KEY)
    assert claim is not None
    assert store.claim(KEY) is None
    assert store.claim("other") is not None
    claim.release()
    assert store.claim(KEY) is not None


def test_a_claim_ends_with_its_process_and_the_next_goes_on(store: Store) -> None:
    code = (
        "import sys, os; from pathlib import Path; from exahpc.models.copies import Store\n"
        "claim = Store(Path(sys.argv[1])).claim(sys.argv[2]); writer = claim.writer(10)\n"
        "writer.write('config.json', b'{'); print('writing', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, str(store.path.parent), KEY]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"writing\n"
        assert store.claim(KEY) is None
        assert store.progress(KEY) == 1
        maker.kill()
    make(store)
    assert not list(store.path.glob("*.part"))


def test_an_unfinished_copy_is_no_copy(store: Store) -> None:
    claim = store.claim(KEY)
    assert claim is not None
    claim.writer(3).write("model.safetensors", b"wei")
    claim.release()
    assert found(store) is None


def test_a_copy_that_lost_bytes_is_made_anew_even_while_it_is_used(store: Store) -> None:
    held = make(store)
    (held.path / "model.safetensors").write_bytes(b"weigh")
    assert found(store) is None
    make(store)
    assert found(store) is not None


def test_a_copy_left_behind_is_read_through_before_it_is_used(store: Store) -> None:
    held = make(store)
    (held.path / "model.safetensors").write_bytes(b"weighTs")
    used = found(store)
    assert used is not None  # others vouch for it: only sizes are looked at
    used.close()
    held.close()
    assert found(store) is None


def test_a_store_that_vanished_is_made_again(store: Store) -> None:
    make(store)
    subprocess.run(["rm", "-r", str(store.path)], check=True)
    make(store)


def test_what_is_used_stays_and_what_is_not_goes(store: Store) -> None:
    used, unused = make(store), make(store, "unused")
    unused.close()
    assert store.sweep() == ["unused"]
    assert used.path.is_dir()
    used.close()
    assert store.sweep() == [KEY]
    assert not store.path.exists()


def test_a_copy_in_the_making_is_not_swept(store: Store) -> None:
    claim = store.claim(KEY)
    assert claim is not None
    writer = claim.writer(2)
    assert store.sweep() == []
    writer.write("config.json", b"{}")
    claim.publish(writer.done())


def test_remains_of_dead_makers_are_swept(store: Store) -> None:
    (store.path / f"{KEY}.part").mkdir(parents=True)
    (store.path / f"{KEY}.part" / "model.safetensors").write_bytes(b"x")
    (store.path / "other.gone").mkdir()
    store.path.chmod(0o700)
    store.sweep()
    assert not store.path.exists()


def test_only_the_user_can_look_inside(store: Store) -> None:
    held = make(store)
    modes = {path.stat().st_mode & 0o777 for path in (store.path, held.path)}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in held.path.iterdir()} == {0o600}


def test_a_store_that_others_can_enter_is_refused(store: Store) -> None:
    store.path.mkdir(mode=0o755)
    store.path.chmod(0o755)
    with pytest.raises(DeploymentError, match="not a private directory"):
        store.claim(KEY)


def test_room_is_made_from_what_nobody_uses_before_it_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, "old").close()
    monkeypatch.setattr(copies, "_free", lambda path: 0 if (store.path / "old").exists() else 100)
    make(store)
    assert not (store.path / "old").exists()
    claim = store.claim("large")
    assert claim is not None
    with claim, pytest.raises(DeploymentError, match=r"model\.stage: .* free, the weights take"):
        claim.writer(101)


def test_a_full_disk_is_told_with_its_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = store.claim(KEY)
    assert claim is not None
    writer = claim.writer(1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DeploymentError, match=r"cannot write .*No space left"):
        writer.write("config.json", b"x")


def test_a_directory_follows_the_environment_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert directory("${TMPDIR}/x", {"TMPDIR": str(tmp_path)}) == tmp_path / "x"
    assert directory(None, {}) == Path(copies.DEFAULT)
    with pytest.raises(DeploymentError, match=r"TMPDIR.* is not set"):
        directory("$TMPDIR", {})
    with pytest.raises(DeploymentError, match="no directory"):
        directory("/nowhere", {})


def test_a_manifest_that_is_damaged_makes_a_copy_useless(store: Store) -> None:
    held = make(store)
    (held.path / manifest.NAME).write_bytes(b"{")
    held.close()
    assert found(store) is None
