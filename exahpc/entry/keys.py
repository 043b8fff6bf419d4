"""Who may ask: API keys, compared without telling an attacker anything through time."""

from __future__ import annotations

import hashlib
import logging
import os

from exahpc.wire.folder import UNNAMED, Folder

log = logging.getLogger(__name__)


class Keys:
    """The keys of secrets/api_keys, held as keyed digests only.

    A presented key is looked up by its digest under a secret of this process: how long that takes says nothing
    about any key, however many there are.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._salt = os.urandom(32)
        self._names: dict[bytes, str] = {}
        self._owners: dict[bytes, str] = {}
        self._seen: tuple[int, int, int] | None = None
        self.reload()

    def reload(self) -> None:
        """Read the file again if it changed. A file that cannot be read leaves the keys as they are."""
        try:
            found = (self._folder.path / "secrets" / "api_keys").stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen == self._seen:
                return
            keys = self._folder.api_keys()
        except (OSError, UnicodeDecodeError) as error:
            if self._seen is not None or not self._names:
                log.warning("the API keys cannot be read (%s): %d keys stay valid", error, len(self._names))
            self._seen = None
            return
        self._names = {self._digest(key.encode()): name for key, name in keys.items()}
        self._owners = {self._digest(key.encode()): _owner(key, name) for key, name in keys.items()}
        self._seen = seen
        log.info("%d API keys", len(keys))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()

    def check(self, authorization: bytes | None) -> str | None:
        """The name of the key in an Authorization header ("Bearer KEY"), or None: not allowed."""
        if authorization is None or authorization[:7].lower() != b"bearer ":
            return None
        return self._names.get(self._digest(authorization[7:].strip()))

    def owner(self, authorization: bytes) -> str:
        """Who owns what a key that `check` let in uploads and orders. Keys of one name share it, so a key can be
        replaced under its name; a key without a name is an owner by itself, wherever it stands in the file."""
        return self._owners[self._digest(authorization[7:].strip())]


def _owner(key: str, name: str) -> str:
    if not name.startswith(UNNAMED):
        return f"name {name}"
    return f"key {hashlib.blake2b(key.encode(), digest_size=16, person=b'exahpc owner').hexdigest()}"
