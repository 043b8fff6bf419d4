"""Measurements that go on where an earlier run of the same command stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from exahpc.errors import DeploymentError


class Measured(Protocol):
    """What is kept in a file. question: what was asked, so that answers to another one are not taken for it."""

    @property
    def question(self) -> Any: ...


Found = TypeVar("Found", bound=Measured)


def resumed(path: Path, kind: type[Found], question: object) -> Found | None:
    """What an earlier run of the same question has left at `path`; None when nothing has.

    Raises DeploymentError when another question was asked, or the file is none of ours.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise DeploymentError(f"{path} is no {path.name} ({error}): name another --output") from None
    if found.question != question:
        raise DeploymentError(
            f"{path} was measured with another deployment or other options: give these again to go on with it, "
            f"or name another --output"
        )
    return found
