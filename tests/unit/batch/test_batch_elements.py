"""A JSON array is cut into its elements wherever the pieces end in which it is read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.batch.inputs import elements as module
from exahpc.batch.inputs.elements import elements
from exahpc.errors import BatchError

TEXT = st.text(st.sampled_from('a\\"[]{},é\u2028 \n'), max_size=8)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def cut(data: bytes, size: int) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_CHUNK", size)
        return list(elements(io.BytesIO(data), Path("x.json")))


@given(st.lists(VALUES, max_size=6), st.integers(1, 9), st.sampled_from([None, 1]), st.booleans())
def test_elements_are_those_of_the_array_whatever_the_pieces(
    values: list[Any], size: int, indent: int | None, ascii_only: bool
) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    found = cut(data, size)
    assert [json.loads(element) for element in found] == values
    assert not any(b"\n" in element for element in found)


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 20])
def test_a_broken_array_is_told_and_an_empty_element_is_a_row(size: int) -> None:
    assert cut(b"[1,,2,]", size) == [b"1", b",", b"2", b","]
    assert cut(b"[ ]", size) == []
    with pytest.raises(BatchError, match="has no end"):
        cut(b'[1, "]', size)
    with pytest.raises(BatchError, match="more than one JSON value"):
        cut(b"[1] [2]", size)
