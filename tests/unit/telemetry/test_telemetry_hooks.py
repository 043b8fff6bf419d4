"""Laws of the hooks that pass alerts on."""

from __future__ import annotations

import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from exahpc.telemetry import hooks
from exahpc.telemetry.alerts import Told
from exahpc.telemetry.hooks import Hooks
from tests.live import until

TOLD = Told("queue", "firing", "the queue is long", 0.7, 0.5, 1000.0)


class Receiver:
    """A web server that answers with these codes, the last one for ever."""

    def __init__(self, *codes: int) -> None:
        self.bodies: list[bytes] = []
        left = list(codes)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret-token"


def test_a_webhook_gets_the_message_as_json() -> None:
    receiver = Receiver(200)
    Hooks("mine", receiver.url, ()).tell(TOLD)
    until("the message", lambda: receiver.bodies)
    assert json.loads(receiver.bodies[0]) == {
        "deployment": "mine", "alert": "queue", "state": "firing", "text": "the queue is long", "value": 0.7,
        "threshold": 0.5, "at": 1000.0,
    }  # fmt: skip


def test_a_webhook_that_fails_is_tried_again_a_few_times_and_its_url_is_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(500)
    with caplog.at_level(logging.DEBUG, "exahpc"):
        Hooks("mine", receiver.url, (), pause=0.0).tell(TOLD)
        until("the end of the tries", lambda: "failed 3 times" in caplog.text)
    assert len(receiver.bodies) == hooks.TRIES
    assert "secret-token" not in caplog.text


def test_a_command_gets_it_on_its_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    Hooks("mine", "", (sys.executable, "-c", code, str(out))).tell(TOLD)
    until("the command", lambda: out.exists() and out.read_text())
    assert json.loads(out.read_text())["alert"] == "queue"


def test_a_command_that_is_not_there_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    Hooks("mine", "", ("/nowhere/page",), pause=0.0).tell(TOLD)
    until("the line", lambda: "the alert command failed 3 times" in caplog.text)


def test_a_hook_that_hangs_holds_up_nobody_and_keeps_a_bounded_line(caplog: pytest.LogCaptureFixture) -> None:
    found = Hooks("mine", "http://127.0.0.1:9/", ())
    hangs = threading.Event()
    found._post = lambda body: hangs.wait(60) and None  # type: ignore[method-assign, assignment, return-value]
    for _ in range(hooks.MOST_WAITING + 2):
        found.tell(TOLD)
    assert "do not keep up" in caplog.text
    hangs.set()


def test_without_hooks_no_thread_runs() -> None:
    found = Hooks("mine", "", ())
    found.tell(TOLD)
    assert found._thread is None
