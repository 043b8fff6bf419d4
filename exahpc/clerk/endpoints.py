"""Rows of a batch that ask for another endpoint than the batch was ordered for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from exahpc.batch.plan import BAD, KINDS, Parts
from exahpc.wire.submissions import LineError

_KIND = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
_URL = {kind: url for url, kind in _KIND.items()}
_CODE = "mismatched_endpoint"


def strangers(parts: Parts, endpoint: str) -> Iterator[LineError]:
    """In input order. parts: validated."""
    index = parts.load_index()
    kinds = index["kind"]
    for row in np.flatnonzero((kinds != KINDS.index(_KIND[endpoint])) & (kinds != BAD)):
        url = _URL[KINDS[int(kinds[row])]]
        reason = f"url is {url}, but the batch was created for {endpoint}: give all rows of a batch one url"
        yield LineError(reason, int(index["line"][row]), _CODE)
