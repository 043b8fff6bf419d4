"""What the broker tells of one batch beyond its rows: tokens, reasons, node-hours. Pure."""

from __future__ import annotations

import msgspec

from exahpc.batch.reasons import Reasons
from exahpc.wire.messages import BatchStatus, LeaseProgress

_SHOWN = 5
_NOTE_SECONDS = 15.0


class Tally:
    """before: node-hours of earlier brokers; account: the deployment's when this one opened the batch."""

    def __init__(self, before: float, account: float) -> None:
        self._before, self._at_open = before, account
        self._prompt = self._completion = 0
        self._reasons = Reasons()
        self.used = 0.0
        """Node-hours since this broker opened the batch."""
        self._noted = float("-inf")

    def add(self, message: LeaseProgress) -> None:
        """Rows of this message were committed."""
        self._prompt += message.prompt_tokens
        self._completion += message.completion_tokens
        for reason, rows in message.errors:
            self._reasons.add(reason, rows)

    def account(self, spent: float) -> float:
        """spent: node-hours that the deployment has used in all. Returns `used`."""
        self.used = max(self.used, spent - self._at_open)
        return self.used

    def due(self, now: float) -> bool:
        """True four times a minute: `used` should be noted on disk."""
        due = now >= self._noted + _NOTE_SECONDS
        if due:
            self._noted = now
        return due

    def told(self, status: BatchStatus) -> BatchStatus:
        return msgspec.structs.replace(
            status,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            errors=self._reasons.most(_SHOWN),
            node_hours=self._before + self.used,
        )
