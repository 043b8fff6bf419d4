"""Multipart forms with one file, cut anywhere, and within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.entry.form import LONGEST_FIELD, MOST_FIELDS, Form
from exahpc.errors import RequestError

TYPE = b"multipart/form-data; boundary=bound"


def field(name: str, value: bytes) -> bytes:
    return b'--bound\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)


def file(data: bytes, name: str = "in.jsonl", at: str = "file") -> bytes:
    head = f'--bound\r\nContent-Disposition: form-data; name="{at}"; filename="{name}"\r\n'.encode()
    return head + b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n"


END = b"--bound--\r\n"


def read(body: bytes, step: int = 1 << 20, most: int = 1 << 20) -> tuple[Form, bytes]:
    written = bytearray()
    form = Form(TYPE, written.extend, most)
    for at in range(0, len(body), step):
        form.feed(body[at : at + step])
    form.close()
    return form, bytes(written)


HOSTILE = st.lists(st.sampled_from((b"\r\n", b"--bound", b"--", b"x", b"\r")), max_size=30).map(b"".join)


@given(st.binary(max_size=300) | HOSTILE, st.integers(1, 64), st.booleans())
def test_a_file_comes_out_as_it_went_in_wherever_the_body_is_cut(data: bytes, step: int, first: bool) -> None:
    if b"\r\n--bound" in b"\r\n" + data:
        return  # a client chooses a boundary that its file does not hold
    purpose = field("purpose", b"batch")
    form, written = read((file(data) + purpose if first else purpose + file(data)) + END, step)
    assert (form.fields, form.filename, form.size, written) == ({"purpose": "batch"}, "in.jsonl", len(data), data)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (field("purpose", b"batch") + END, "holds no file"),
        (field("purpose", b"batch") + file(b"x"), "in the middle"),
        (file(b"x")[:-20], "in the middle"),
        (b"nonsense\r\n", "cannot be read"),
        (file(b"x") + file(b"y") + END, "one file"),
        (file(b"x", at="other") + END, "one file"),
        (field("purpose", b"x" * (LONGEST_FIELD + 1)) + file(b"x") + END, "is no file"),
        (b"".join(field(f"f{n}", b"") for n in range(MOST_FIELDS + 1)) + END, "at most"),
        (b'--bound\r\nContent-Disposition: form-data; name="%b"\r\n\r\n' % (b"x" * 5000), "cannot be read"),
    ],
)
def test_a_form_that_is_none_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read(body, 7)


def test_no_byte_beyond_the_bound_is_written() -> None:
    written = bytearray()
    form = Form(TYPE, written.extend, 1000)
    body = file(b"x" * 5000)
    form.feed(body[:900])
    with pytest.raises(RequestError) as caught:
        form.feed(body[900:])
    assert caught.value.status == 413
    assert len(written) <= 1000


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("C:\\dir\\in.jsonl", "in.jsonl"),
        ("../../x", "x"),
        ("a/b/", "file"),
        ("x\x01y", "xy"),
        ("n" * 999, "n" * 255),
    ],
)
def test_a_name_is_a_name_and_no_path(name: str, kept: str) -> None:
    assert read(file(b"x", name) + END)[0].filename == kept


@pytest.mark.parametrize(
    "kind", [None, b"application/json", b"multipart/form-data", b"multipart/form-data; boundary="]
)
def test_what_is_no_form_is_refused_by_its_head(kind: bytes | None) -> None:
    with pytest.raises(RequestError) as caught:
        Form(kind, lambda data: None, 1)
    assert caught.value.status == 415
