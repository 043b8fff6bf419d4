"""The base of all values of the deployment file."""

from __future__ import annotations

import msgspec


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all values of the deployment file: immutable, no unknown keys."""
