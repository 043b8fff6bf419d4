"""What `/v1/files` does to a shelf. Called by threads: each may wait for a shared file system."""

from __future__ import annotations

import os
from collections.abc import Mapping

from exahpc.deployment.spec import Limits
from exahpc.errors import RequestError
from exahpc.openai import batches as objects
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import FileRecord

_MOST_LISTED = 10_000


def retrieve(shelf: Shelf, name: str) -> FileRecord:
    """Raises RequestError (404)."""
    record = shelf.record(name)
    if record is None:
        raise objects.no_such("file", name)
    return record


def listed(shelf: Shelf, query: Mapping[str, str]) -> bytes:
    """One page, newest first unless order=asc."""
    limit, purpose = objects.limit_of(query, _MOST_LISTED, _MOST_LISTED), query.get("purpose")
    ids = shelf.ids() if query.get("order") == "asc" else reversed(shelf.ids())
    records = (record for record in map(shelf.record, ids) if record is not None)
    wanted = (record for record in records if purpose in (None, record.purpose))
    taken, more = objects.page(wanted, query.get("after"), limit)
    return objects.encoded(objects.listed([objects.file_object(record) for record in taken], more))


def shown(shelf: Shelf, name: str) -> bytes:
    return objects.encoded(objects.file_object(retrieve(shelf, name)))


def delete(shelf: Shelf, name: str) -> bytes:
    if not shelf.delete(name):
        raise objects.no_such("file", name)
    return objects.encoded(objects.deleted(name))


def opened(shelf: Shelf, name: str) -> tuple[FileRecord, int]:
    """The file and a descriptor of its bytes, which is the caller's. Raises RequestError (404)."""
    record = retrieve(shelf, name)
    try:
        return record, os.open(shelf.content(name), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # deleted a moment ago
        raise objects.no_such("file", name) from None


def check_room(shelf: Shelf, limits: Limits, coming: int) -> None:
    """Raises RequestError when the shelf holds, or would hold, more than its owner may have. What batches made
    counts too, but is never refused."""
    files, size = shelf.usage()
    if files <= limits.files - bool(coming) and size + coming <= limits.files_bytes:
        return
    raise RequestError(
        f"you have {files} files of {size} bytes; at most {limits.files} (limits.files) of {limits.files_bytes} "
        f"bytes (limits.files_bytes) are kept: delete some",
        status=413, param="file", code="files_full",
    )  # fmt: skip
