"""One multipart form with one file, read as it comes. Pure but for `write`; python-multipart finds the parts."""

from __future__ import annotations

from collections.abc import Callable

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from exahpc.errors import RequestError
from exahpc.openai.body import printable

LONGEST_FIELD = 4096
"""Bytes of a field that is no file."""
MOST_FIELDS = 32
_MOST_HEADERS, _LONGEST_HEADER = 8, 4096
_LONGEST_NAME = 255
_FORM = b"multipart/form-data"


def boundary_of(content_type: bytes | None) -> bytes:
    """Raises RequestError for anything but a form."""
    kind, options = parse_options_header(content_type)
    if kind != _FORM or not options.get(b"boundary"):
        raise RequestError(
            "a file is uploaded as multipart/form-data with the fields purpose and file",
            status=415, param="file", code="unsupported_media_type",
        )  # fmt: skip
    return options[b"boundary"]


class Form:
    """Feed it the body. fields: those that are no file; filename: None as long as no file came; size: its bytes.

    write: takes the file's bytes, in order; most: bytes of it.
    """

    def __init__(self, content_type: bytes | None, write: Callable[[bytes], None], most: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self._write, self._most = write, most
        self._header = self._value = b""
        self._name: str | None = None  # of the part that is being read
        self._in_file = self._ended = False
        self._text = bytearray()
        self._parts = 0
        try:
            self._parser = MultipartParser(
                boundary_of(content_type),
                {
                    "on_part_begin": self._on_part_begin,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_end": self._on_end,
                },
                max_header_count=_MOST_HEADERS,
                max_header_size=_LONGEST_HEADER,
            )
        except FormParserError as error:
            raise _broken(error) from error

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises RequestError, and what `write` raises."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _broken(error) from error

    def close(self) -> None:
        """The body has ended. Raises RequestError when the form has not, or holds no file."""
        if not self._ended:
            raise RequestError("the form ends in the middle: send it whole", param="file", code="bad_form")
        if self.filename is None:
            raise RequestError("file: missing: the form holds no file", param="file")

    # --- what the parser calls ---

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_FIELDS:
            raise RequestError(f"a form has at most {MOST_FIELDS} fields here", code="bad_form")
        self._name, self._in_file = None, False
        self._text.clear()
        self._header = self._value = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            options = parse_options_header(self._value)[1]
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                self._file(options[b"filename"])
        self._header = self._value = b""

    def _file(self, name: bytes) -> None:
        if self._name != "file" or self.filename is not None:
            raise RequestError("one file is taken, in the field file", param=self._name, code="bad_form")
        text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2][-_LONGEST_NAME:]
        self.filename, self._in_file = "".join(c for c in text if c.isprintable()) or "file", True

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self.size += end - start
            if self.size > self._most:
                raise file_too_large(self.size, self._most)
            self._write(data[start:end])
        elif len(self._text) + end - start > LONGEST_FIELD:
            message = f"{printable(self._name)} has more than {LONGEST_FIELD} bytes, and is no file"
            raise RequestError(message, param=self._name, code="bad_form")
        else:
            self._text += data[start:end]

    def _on_part_end(self) -> None:
        if not self._in_file and self._name:
            self.fields[self._name] = self._text.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._ended = True


def file_too_large(size: int, most: int) -> RequestError:
    """413."""
    message = f"the file has {size} bytes or more; at most {most} are taken (limits.upload_bytes)"
    return RequestError(message, status=413, param="file", code="file_too_large")


def _broken(error: Exception) -> RequestError:
    return RequestError(f"the form cannot be read: {error}", param="file", code="bad_form")
