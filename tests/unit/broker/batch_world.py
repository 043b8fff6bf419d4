"""A broker's batches, agents' workers and a client in one process, on the real files."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

from exahpc.agent.leases import LeaseWorker
from exahpc.batch.export import export
from exahpc.batch.run import Prepared, Summary, drive
from exahpc.broker.batches import Batches
from exahpc.wire.messages import (
    BatchCancel,
    BatchOpen,
    BatchQuery,
    BatchState,
    LeaseProgress,
    LeaseRevoke,
    Refused,
)
from tests.live import until


def write_input(path: Path, rows: int, **changes: Any) -> Path:
    with open(path, "w") as file:
        for row in range(rows):
            body = {"model": "m", "messages": [{"role": "user", "content": f"q{row}"}], **changes}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def answer(body: bytes, seed: int) -> tuple[int, bytes]:
    """A model that repeats the question and tells its seed; "q13" is too long for it."""
    question = json.loads(body)["messages"][0]["content"]
    if question == "q13":
        return 400, b'{"error": {"message": "the prompt is too long", "type": "invalid_request_error"}}'
    return 200, json.dumps({"text": f"a\x00{question}", "seed": seed}).encode()


class World:
    """A broker that can be restarted, agents that can be killed, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.epoch, self.now = folder, 0, 0.0
        self.agents: dict[str, LeaseWorker] = {}
        self.running: dict[str, list[Any]] = {}
        self.lose_progress = False
        self.seen: list[tuple[str, str]] = []
        self.batches: Batches
        self.start_broker()

    def start_broker(self, account: float = 0.0) -> None:
        self.epoch += 1
        self.batches = Batches(self.folder, self.epoch, account)
        for name, worker in self.agents.items():
            self.revoke([(name, m) for m in self.batches.hello(name, worker.leases, self.now)])

    def end_broker(self) -> None:
        """When what it decided is on disk: a grant that is not costs a second run of its rows."""

        def written() -> bool:
            self.revoke(self.batches.tick(self.now))
            return all(entry.files.written for entry in self.batches._batches.values())

        until("all events are written", written)
        self.batches.close()

    def start_agent(self, name: str) -> None:
        self.agents[name] = LeaseWorker(name.replace("/", "-"), clock=lambda: self.now)
        self.running[name] = []
        self.revoke([(name, m) for m in self.batches.hello(name, [], self.now)])

    def lose_agent(self, name: str) -> None:
        del self.agents[name]
        self.batches.agent_lost(name, self.now)

    def revoke(self, messages: list[tuple[str, LeaseRevoke]]) -> None:
        for name, message in messages:
            if name in self.agents:
                self.agents[name].revoke(message.lease, message.soft)

    def tell(self, name: str, messages: list[LeaseProgress]) -> None:
        for message in messages:
            if not self.lose_progress:
                self.revoke([(name, m) for m in self.batches.progress(name, message, self.now)])

    def step(self) -> None:
        """Half a second: what runs ends, room is filled, the broker ticks."""
        self.now += 0.5
        for name, worker in self.agents.items():
            for row in self.running[name]:
                worker.ended(row.key, *answer(row.body, row.seed), 3, 4)
            self.running[name] = worker.next_rows(8)
            self.seen += [(name, row.key) for row in self.running[name]]
            if rows := worker.wanted(8 - len(self.running[name])):
                for grant in self.batches.want(name, rows, self.epoch, self.now):
                    worker.grant(grant)
            self.tell(name, asyncio.run(worker.sync()))
        self.revoke(self.batches.tick(self.now))
        time.sleep(0.002)

    def ask(self, message: BatchOpen | BatchQuery | BatchCancel) -> BatchState | Refused:
        return self.batches.handle_client(message)

    def drive(self, prepared: Prepared) -> Summary:
        states: list[str] = []
        return drive(
            prepared,
            self.ask,
            lambda s: states.append(s.state if s else "away"),
            sleep=lambda s: self.step(),
            clock=lambda: self.now,
        )

    def run_until(self, batch: str, rows: int) -> None:
        for _ in range(2000):
            self.step()
            (status,) = [s for s in self.batches.status() if s.batch == batch]
            if status.ok + status.failed >= rows:
                return
        raise AssertionError("no progress")


def exported(source: Path) -> list[dict[str, Any]]:
    out = io.BytesIO()
    export(source, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def check(path: Path, rows: int, summary: Summary) -> None:
    """Every row once, in order, with its own answer."""
    lines = exported(path)
    assert [line["custom_id"] for line in lines] == [f"r{row}" for row in range(rows)]
    for row, line in enumerate(lines):
        if row == 13:
            assert line["response"] is None
            assert line["error"]["message"] == "the prompt is too long"
            assert line["error"]["status_code"] == 400
        else:
            assert line["error"] is None
            assert line["response"]["body"]["text"] == f"a\x00q{row}"
    assert (summary.total, summary.ok, summary.failed) == (rows, rows - (rows > 13), int(rows > 13))
