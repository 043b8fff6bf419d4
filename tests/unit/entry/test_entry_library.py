"""`/v1/files` and `/v1/batches` of an entry, under the official client and under rude ones. No clerk runs here."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from exahpc.entry.http1 import Request
from exahpc.entry.upload import Upload
from exahpc.errors import RequestError
from exahpc.wire.folder import write_atomic
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import FileRecord, State
from exahpc.wire.tray import Tray
from tests.live import until
from tests.unit.entry.conftest import KEY, Own, Running, _own

pytestmark = pytest.mark.timeout(60)
LIMITS = "upload_bytes = 3000000\nfiles = 6\nfiles_bytes = 8000000\nbatches = 2"
OTHER, NAMELESS = "sk-other-0123456789", "sk-nameless-0123456789"
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'


@pytest.fixture(scope="module")
def library() -> Iterator[Own]:
    with contextlib.contextmanager(_own)({"limits": LIMITS}) as made:
        keys = f"me:{KEY}\nother:{OTHER}\n{NAMELESS}\n"
        write_atomic(made.folder.path / "secrets" / "api_keys", keys.encode())
        made.entry.until(lambda: made.entry.get("/v1/models", headers=bearer(NAMELESS)).status_code == 200)
        yield made


@pytest.fixture
def entry(library: Own) -> Iterator[Running]:
    yield library.entry
    shelf = Shelf(library.folder.path, "name me")
    for file in shelf.ids():
        shelf.delete(file)
    tray = Tray(library.folder.path)
    for batch in tray.ids():
        tray.save(batch, State("failed"))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def client_of(entry: Running, key: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=entry.base + "/v1", api_key=key, max_retries=0, http_client=httpx.Client(verify=False)
    )


def upload(client: openai.OpenAI, data: bytes = LINE, name: str = "in.jsonl") -> Any:
    return client.files.create(file=(name, io.BytesIO(data)), purpose="batch")


def files_of(entry: Running) -> list[Path]:
    root = entry.folder.path / "files"
    return [path for path in root.rglob("*") if path.is_file()] if root.is_dir() else []


def test_a_file_is_kept_byte_for_byte_listed_and_deleted(entry: Running) -> None:
    client = entry.client()
    data = os.urandom(2_500_000)
    made = upload(client, data, "dir/ünï.jsonl")
    assert (made.object, made.purpose, made.bytes, made.filename) == ("file", "batch", len(data), "ünï.jsonl")
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).content == data
    second = upload(client)
    assert [file.id for file in client.files.list().data] == [second.id, made.id]
    assert [file.id for file in client.files.list(order="asc", limit=1)] == [made.id, second.id], "over two pages"
    assert client.files.list(purpose="batch_output").data == []
    assert client.files.delete(made.id).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    assert all(path.stat().st_mode & 0o077 == 0 for path in files_of(entry))


def test_a_key_sees_only_what_belongs_to_its_name(entry: Running) -> None:
    mine, others, nameless = entry.client(), client_of(entry, OTHER), client_of(entry, NAMELESS)
    file = upload(mine)
    batch = mine.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    for client in (others, nameless):
        assert client.files.list().data == []
        assert client.batches.list().data == []
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(file.id)
        for about in (client.batches.retrieve, client.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                about(batch.id)
        with pytest.raises(openai.NotFoundError, match="upload it first"):
            client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert mine.batches.retrieve(batch.id) == batch


def test_what_is_no_batch_file_is_refused_and_leaves_nothing(entry: Running) -> None:
    client = entry.client()
    with pytest.raises(openai.BadRequestError, match="purpose: 'vision' is not served"):
        client.files.create(file=("x", io.BytesIO(LINE)), purpose="vision")
    with pytest.raises(openai.BadRequestError, match="file: it is empty"):
        upload(client, b"")
    with pytest.raises(openai.BadRequestError, match="files stay until they are deleted"):
        client.files.create(
            file=("x", io.BytesIO(LINE)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    assert entry.post("/v1/files", json={"purpose": "batch"}).status_code == 415
    cut = entry.post(
        "/v1/files",
        content=b"--b\r\n",
        headers=entry.headers | {"Content-Type": "multipart/form-data; boundary=b"},
    )
    assert (cut.status_code, cut.json()["error"]["code"]) == (400, "bad_form")
    until("nothing is left", lambda: not files_of(entry), 10)
    assert client.files.list().data == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_is_too_large_is_refused_at_once(entry: Running, announced: bool) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + b"x" * 4_000_000
    body: Any = form if announced else iter([form[i : i + 65536] for i in range(0, len(form), 65536)])
    headers = entry.headers | {"Content-Type": "multipart/form-data; boundary=b"}
    answer = entry.post("/v1/files", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    assert "limits.upload_bytes" in answer.json()["error"]["message"]
    until("nothing is left", lambda: not files_of(entry), 10)


def test_an_owner_has_a_bound_on_files_and_bytes_and_a_delete_makes_room(entry: Running) -> None:
    client = entry.client()
    made = [upload(client, b"x" * 2_500_000) for _ in range(3)]
    with pytest.raises(openai.APIStatusError, match=r"limits\.files_bytes") as caught:
        upload(client, b"x" * 2_500_000)
    assert caught.value.status_code == 413
    client.files.delete(made[0].id)
    made = [*made[1:], *(upload(client) for _ in range(4))]
    with pytest.raises(openai.APIStatusError, match=r"limits\.files"):
        upload(client)
    for file in made:
        client.files.delete(file.id)
    upload(client)


def test_an_upload_whose_client_leaves_is_forgotten_and_the_next_one_works(entry: Running) -> None:
    host, port = entry.base.removeprefix("http://").split(":")
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 2000000\r\n"
        'Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\nContent-Disposition: form-data; name="file"; '
        'filename="x"\r\n\r\n'
    )
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + b"x" * 1_000_000)
        until("it is on its way to disk", lambda: any(p.suffix == ".part" for p in files_of(entry)), 10)
    until("nothing is left of it", lambda: not files_of(entry), 10)
    upload(entry.client())


class Timed:
    """A client whose time is renewed `renewed` times."""

    renewed = 0

    def hold(self, holding: bool) -> None: ...

    def more_time(self) -> None:
        self.renewed += 1

    def turned_down(self, request: Request, error: RequestError) -> None:
        raise error


@pytest.mark.parametrize(("size", "count", "renewed"), [(1, 200, 0), (2**16, 64, 4)])
def test_bytes_of_an_upload_that_trickle_do_not_renew_its_time(
    tmp_path: Path, size: int, count: int, renewed: int
) -> None:
    """It must bring 1 MiB a minute."""

    async def trickle() -> int:
        client, request = Timed(), Request(b"POST", b"/v1/files", {b"content-type": FORM})
        with ThreadPoolExecutor(1) as threads:
            sink = Upload(request, Shelf(tmp_path, "me"), 2**30, lambda coming: None, threads)
            sink.feed(FILE_HEAD, client)
            for _ in range(count):
                sink.feed(b"x" * size, client)
                await sink.settled()
            sink.abort()
        return client.renewed

    assert asyncio.run(trickle()) == renewed


def test_a_refused_upload_whose_body_has_ended_is_removed_once_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal and the end of the body remove it at the same time, each in a thread."""
    close, closed = os.close, []

    def slowly(fd: int) -> None:
        closed.append(fd)
        time.sleep(0.05)
        close(fd)

    async def refused() -> None:
        request = Request(b"POST", b"/v1/files", {b"content-type": FORM})
        request.complete = True
        with ThreadPoolExecutor(4) as threads:
            sink = Upload(request, Shelf(tmp_path, "me"), 2**30, lambda coming: None, threads)
            monkeypatch.setattr(os, "close", slowly)
            sink.feed(FILE + FILE + b"--b--", Kept())
            await sink.settled()
            with pytest.raises(RequestError, match="one file is taken"):
                await asyncio.get_running_loop().run_in_executor(threads, sink.finish)

    asyncio.run(refused())
    monkeypatch.undo()
    assert len(closed) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Kept(Timed):
    """A client whose request is complete: it is answered when all is known."""

    def turned_down(self, request: Request, error: RequestError) -> None:
        pass


def test_uploads_ahead_of_garbage_leave_no_open_file(entry: Running) -> None:
    host, port = entry.base.removeprefix("http://").split(":")
    ask = f"GET /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {len(FILE_HEAD)}\r\nContent-Type: {FORM.decode()}\r\n\r\n"
    )
    for _ in range(3):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(ask + head.encode() + FILE_HEAD + b"\x00garbage\r\n\r\n")
            while client.recv(65536):
                pass
    until("nothing is left of them", lambda: not files_of(entry), 10)


PART = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + LINE + b"\r\n"
FILE_HEAD = FILE[: -len(b"\r\n")]
FORM = b"multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"\x00" * 100_000),
        (FORM, b"--b" * 50_000),
        (FORM, b"--b\r\n" + b"x" * 500_000),
        (FORM, b"--b\r\n" + b"a: b\r\n" * 50_000),
        (FORM, b"--b\r\nContent-Disposition: form-data; name=" + b'"' * 200_000),
        (FORM, (PART % (b"a", b"b")) * 5_000 + b"--b--"),
        (FORM, PART % (b"purpose", b"batch" * 100_000) + b"--b--"),
        (FORM, FILE + FILE + b"--b--"),
        (FORM, PART % (b"file", LINE) + b"--b--"),
        (FORM, b"--b--"),
        (FORM, FILE + b"--b--" + b"tail" * 100_000),
        (FORM, PART % (b"purpose", b"\xff\x00") + FILE + b"--b--"),
        (b"multipart/form-data; boundary=" + b"b" * 5_000, b"--" + b"b" * 5_000 + b"--"),
        (b"multipart/form-data; boundary=\xff\xfe", b"--\xff\xfe--"),
        (b'multipart/form-data; boundary=""', b"----"),
        (b"multipart/form-data; boundary", b"--b--"),
        (b"multipart/mixed; boundary=b", FILE + b"--b--"),
        (b"application/x-www-form-urlencoded", b"purpose=batch"),
    ],
    ids=range(18),
)
def test_whatever_comes_as_a_form_ends_in_an_openai_error_and_leaves_nothing(
    entry: Running, kind: bytes, body: bytes
) -> None:
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nContent-Type: %s"
    )
    asked = head % (KEY.encode(), len(body), kind) + b"\r\nConnection: close\r\n\r\n" + body
    host, port = entry.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        with contextlib.suppress(ConnectionError):  # refused before it took all
            client.sendall(asked)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(65536):
                answer += piece
    assert answer.startswith(b"HTTP/1.1 4"), (answer[:200], entry.log.read_text()[-3000:])
    assert b'"error"' in answer
    until("nothing is left", lambda: not files_of(entry), 30)
    upload(entry.client())


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: -1\r\n",
        b"Content-Length: 1e3\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length: 10\r\nContent-Length: 20\r\n",
        b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
    ],
)
def test_a_length_that_is_none_is_refused_and_the_next_client_is_served(entry: Running, lengths: bytes) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\n" % (
        KEY.encode(),
        FORM,
    )
    host, port = entry.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(head + lengths + b"\r\n" + FILE)
        answer = client.recv(65536)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), answer[:200]
    until("nothing is left", lambda: not files_of(entry), 30)
    upload(entry.client())


def test_while_many_upload_and_download_models_are_still_answered(entry: Running) -> None:
    client, problems = entry.client(), []
    data = os.urandom(2_000_000)

    def work() -> None:
        try:
            file = upload(client, data)
            assert client.files.content(file.id).content == data
            client.files.delete(file.id)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert client.models.list().data
    assert not problems


def test_a_batch_is_ordered_listed_page_by_page_and_cancelled_once(entry: Running) -> None:
    client = entry.client()
    file = upload(client)
    order: dict[str, Any] = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    made = client.batches.create(**order, metadata={"job": "nightly"})
    assert (made.object, made.status, made.endpoint) == ("batch", "validating", "/v1/completions")
    assert (made.metadata, made.input_file_id) == ({"job": "nightly"}, file.id)
    assert made.expires_at == made.created_at + 24 * 3600
    client.files.delete(file.id)
    tray = Tray(entry.folder.path)
    assert (tray.folder(made.id) / "input.jsonl").read_bytes() == LINE, "the batch does not need the file's name"
    file = upload(client)
    second = client.batches.create(**{**order, "input_file_id": file.id})
    first_page = client.batches.list(limit=1)
    assert ([b.id for b in first_page.data], first_page.has_more) == ([second.id], True)
    assert [b.id for b in client.batches.list(limit=1)][:2] == [second.id, made.id]
    with pytest.raises(openai.RateLimitError, match=r"limits\.batches"):
        client.batches.create(**{**order, "input_file_id": file.id})
    cancelled = client.batches.cancel(made.id)
    assert cancelled.status == "cancelling"
    assert client.batches.cancel(made.id) == cancelled, "asking twice changes nothing"
    tray.save(made.id, State("cancelled", times={"cancelled": 7}))
    assert client.batches.retrieve(made.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="nothing to cancel"):
        client.batches.cancel(made.id)


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"endpoint": "/v1/embeddings"}, "/v1/chat/completions"),
        ({"completion_window": "soon"}, "24h"),
        ({"completion_window": None}, "24h"),
        ({"input_file_id": None}, "upload the input"),
        ({"metadata": {"k": "v" * 513}}, "512"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "delete them"),
    ],
)
def test_a_wrong_order_is_named(entry: Running, changed: dict[str, Any], names: str) -> None:
    order = {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h"} | changed
    answer = entry.post("/v1/batches", json={k: v for k, v in order.items() if v is not None})
    assert answer.status_code == 400
    assert names in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == next(iter(changed))


def test_what_a_batch_made_is_no_input(entry: Running) -> None:
    shelf = Shelf(entry.folder.path, "name me")
    shelf.create()
    file = shelf.new_id()
    shelf.part(file).write_bytes(LINE)
    shelf.publish(FileRecord(file, len(LINE), 1, "x", "batch_output"))
    with pytest.raises(openai.BadRequestError, match='purpose "batch_output"'):
        entry.client().batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/..%2f..%2fsecrets", 404),
        ("GET", "/v1/files/file-0", 404),
        ("GET", "/v1/files/file-000000000000000000000000/x", 404),
        ("GET", "/v1/files/../../secrets/api_keys/content", 404),
        ("PUT", "/v1/files", 405),
        ("GET", "/v1/batches/batch_0/cancel", 405),
        ("POST", "/v1/batches/batch_0/cancel", 404),
        ("GET", "/v1/batchesx", 404),
        ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/batches?limit=many", 400),
    ],
)
def test_ways_that_lead_nowhere_end_in_an_openai_error(
    entry: Running, method: str, path: str, status: int
) -> None:
    answer = entry.request(method, path)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert entry.request(method, path, headers={}).status_code == 401
