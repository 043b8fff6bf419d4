"""The results file: its datasets, what they hold, in which units. For users: docs/reference/results.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import h5py

from exahpc.batch.answers import REASONS
from exahpc.batch.columns import OUTCOMES

FORMAT, VERSION = "exahpc.batch.results", 2


class Column(NamedTuple):
    """One dataset with a value a row."""

    kind: Any
    unit: str
    about: str


COLUMNS = {
    "row": Column("<u8", "", "row of the input, from 0"),
    "file": Column("<u4", "", "input it came from: place in inputs/path"),
    "line": Column("<u4", "", "line or row in that file, from 1"),
    "outcome": Column(h5py.enum_dtype(OUTCOMES, "u1"), "", "ok, failed, or skipped: bad in the input, not run"),
    "status": Column("<u2", "", "HTTP status: 200 for ok, else that of the error"),
    "finish_reason": Column(h5py.enum_dtype(REASONS, "u1"), "", "why the text of the first choice ended"),
    "prompt_tokens": Column("<u4", "tokens", "tokens of the prompt"),
    "completion_tokens": Column("<u4", "tokens", "tokens generated, all choices"),
    "cached_tokens": Column("<u4", "tokens", "tokens of the prompt that were in the prefix cache"),
    "replica": Column("<u4", "", "what ran it: place in replicas; 0 is none"),
    "time/queued": Column("<f8", "s", "Unix time: its agent chose a replica for it; NaN when it was not run"),
    "time/started": Column("<f8", "s", "Unix time: the replica got it"),
    "time/first_token": Column("<f8", "s", "Unix time: its first token was there"),
    "time/ended": Column("<f8", "s", "Unix time: its answer was complete"),
    "custom_id/present": Column("u1", "", "1 where the line gave a custom_id"),
}
RAGGED = {
    "custom_id": Column("u1", "", "custom_id of the line, UTF-8"),
    "response": Column("u1", "", "body of the response as JSON; OpenAI's error body where outcome is not ok"),
    "text": Column("u1", "", "text of the first choice, UTF-8"),
    "token_ids": Column("<u4", "", "token ids of the first choice as drawn"),
    "logprobs": Column("<f4", "nat", "log-probabilities of the tokens, where they were asked for"),
}
"""Each a group with `data` and `offsets` (rows + 1): number i is data[offsets[i]:offsets[i + 1]]."""
REQUEST = Column("u1", "", "OpenAI batch line of each row in failed/row, with its line end")
"""As `failed/request`."""
