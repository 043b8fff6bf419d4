"""Who owns what: by the name of a key, or by the key itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.entry.keys import Keys
from exahpc.wire.folder import Folder, write_atomic


def owners(home: Path, text: str, *keys: str) -> list[str]:
    (home / "secrets").mkdir(exist_ok=True)
    write_atomic(home / "secrets" / "api_keys", text.encode())
    found = Keys(Folder(home))
    return [found.owner(f"Bearer {key}".encode()) for key in keys]


def test_a_name_owns_whatever_its_key_is_and_a_key_without_one_wherever_it_stands(tmp_path: Path) -> None:
    first = owners(tmp_path, "me:sk-1\nsk-2\nsk-3\nyou:sk-4\n", "sk-1", "sk-2", "sk-3", "sk-4")
    assert len(set(first)) == 4
    again = owners(tmp_path, "sk-3\nyou:sk-4\nme:sk-9\nsk-2\nme:sk-1\n", "sk-9", "sk-2", "sk-3", "sk-4")
    assert again == first
    assert owners(tmp_path, "me:sk-1\nme:sk-9\n", "sk-9") == first[:1], "two keys of one name share"
    assert not any("sk-" in owner for owner in first)


def test_only_keys_that_are_let_in_own_anything(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        owners(tmp_path, "me:sk-1\n", "sk-2")
