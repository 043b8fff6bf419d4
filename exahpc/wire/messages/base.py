"""What all messages have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="message_type", array_like=True):
    """Base: tagged with the class name, encoded as an array (short, positional)."""
