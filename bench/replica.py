"""A whole replica as its agent sees it: real ranks, started as the local launcher does, driven through the socket.

Benches of grids use this alone, so they follow nothing of the engine's insides.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from exahpc.agent.launch import flavour, mpirun_argv
from exahpc.deployment.spec import Launcher
from exahpc.wire.folder import Folder
from exahpc.wire.messages import Admit, Adopt, ReplicaBeat, ReplicaHello, ReplicaToAgent, StopReplica, Tokens
from tests.dialled import Dialled

READY_SECONDS = 300
SILENT_SECONDS = 120


@dataclass(frozen=True)
class Decoded:
    """tokens_per_s while all sequences decoded; step_ms: from one token of a sequence to its next; idle: share of
    that time that each rank had nothing to do (0..1; empty when the beats do not tell)."""

    tokens_per_s: float
    step_ms: float
    idle: list[float]


class Replica:
    """One running replica. Made by `running`."""

    def __init__(self, socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        while not socket.exists():
            if process.poll() is not None:
                raise SystemExit(f"the replica ended; its log:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        self._link = Dialled(socket)
        self._decode = msgspec.msgpack.Decoder(ReplicaToAgent).decode
        self._next = 0
        self._send(Adopt("bench"))
        self._until(ReplicaHello, READY_SECONDS)

    def decode(self, prompts: list[list[int]], new: int) -> Decoded:
        """Run all prompts at once, greedily, `new` tokens each; only the time in which all decode counts."""
        numbers = range(self._next, self._next + len(prompts))
        self._next += len(prompts)
        for number, ids in zip(numbers, prompts, strict=True):
            self._send(Admit(number, ids, new, 0, 0, 0, []))
        times: dict[int, list[float]] = {number: [] for number in numbers}
        open_ones = set(numbers)
        idle: list[list[float]] = []
        while open_ones:
            message = self._receive(SILENT_SECONDS)
            now = time.perf_counter()
            if isinstance(message, ReplicaBeat):
                if all(times.values()) and all(len(t) < new for t in times.values()):
                    idle.append(list(getattr(message, "idle", ())))
            elif isinstance(message, Tokens):
                for sequence, _ in message.tokens:
                    times[sequence].append(now)
                open_ones -= {sequence for sequence, _ in message.ended}
        begin, end = max(t[0] for t in times.values()), min(t[-1] for t in times.values())
        counted = [[t for t in ts if begin < t <= end] for ts in times.values()]
        if end <= begin or not all(counted):
            raise SystemExit(
                f"{len(prompts)} sequences of {new} tokens were never decoded all at once: ask for more"
            )
        total = sum(map(len, counted))
        told = [shares for shares in idle[1:] if shares]  # the first covers the prompts, too
        mean = [sum(shares) / len(told) for shares in zip(*told, strict=True)]
        rate = total / (end - begin)
        return Decoded(rate, len(prompts) / rate * 1e3, mean)

    def stop(self) -> None:
        self._send(StopReplica())
        self._process.wait(60)

    def _send(self, message: Any) -> None:
        self._link.send(message)

    def _until(self, kind: type[Any], seconds: float) -> Any:
        while not isinstance(message := self._receive(seconds), kind):
            pass
        return message

    def _receive(self, seconds: float) -> Any:
        for _ in range(int(seconds * 2)):
            if self._link.poll(0.5):
                return self._decode(self._link.receive())
            if self._process.poll() is not None:
                break
        raise SystemExit(f"the replica said nothing; its log:\n{self._log.read_text()[-3000:]}")


@contextlib.contextmanager
def running(model: Path, cores: str, *, sequences: int, context: int = 512, **pool: Any) -> Iterator[Replica]:
    """A replica of `model` on these cores ("0", "0,1"), one rank a core. pool: further keys of [[pool]]."""
    where = Path(tempfile.mkdtemp(prefix="exahpc-bench-"))
    keys = {"tensor_parallel": 1, "pipeline_parallel": 1, "max_sequences": sequences, **pool}
    text = f'name = "bench"\n[model]\npath = "{model}"\ncontext = {context}\n[launcher]\nkind = "local"\n'
    text += '[[pool]]\nname = "a"\n' + "".join(f"{k} = {_toml(v)}\n" for k, v in keys.items())
    folder = Folder.create(where / "f", text).path
    socket, log = where / "s", where / "log"
    launcher = Launcher(kind="local")
    version = subprocess.run([launcher.mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    arguments = ("--folder", folder, "--pool", "a", "--slot", 0, "--incarnation", 1, "--socket", socket)
    program = ("taskset", "-c", cores, sys.executable, "-m", "exahpc.replica", *map(str, arguments))
    ranks = keys["tensor_parallel"] * keys["pipeline_parallel"]
    argv = mpirun_argv(launcher, flavour(version, launcher.mpirun), ranks, program, root=os.geteuid() == 0)
    with open(log, "w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        one = Replica(socket, process, log)
        yield one
        one.stop()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(20)
        shutil.rmtree(where, ignore_errors=True)


def _toml(value: Any) -> str:
    """A number, a truth value, or a table of them on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return str(value).lower()


def prompts(model: Path, count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids, other ones for each seed: nothing is found in a prefix cache."""
    size, chance = json.loads((model / "config.json").read_text())["vocab_size"], random.Random(seed)
    return [[chance.randrange(100, size) for _ in range(length)] for _ in range(count)]


def even_heads(folder: Path) -> Path:
    """A random Llama of exactly SmolLM2-135M's size, but 8 query and 4 key/value heads instead of 9 and 3."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder
