"""Whatever dies, and in whatever order: one ending a request, the whole text once, nothing left behind.

Entries, rows and replicas are played here; the model is a fixed script of tokens for each (prompt, seed, choice),
so every answer is known beforehand.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exahpc.agent.relay import Action, Relay, RowEnded, RowLost, ToPeer, ToReplica
from exahpc.agent.tokenizer import Tokenizer
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.openai.logprobs import name
from exahpc.wire.messages import (
    Abort,
    Admit,
    Busy,
    Done,
    Failed,
    Frames,
    Likelihood,
    Load,
    ReplicaHello,
    Resume,
    Submit,
    Tokens,
)
from tests.tiny import make_tokenizer

SLOTS, SEQUENCES, KV, CONTEXT = 2, 3, 220, 128
ALONE = 1000  # seeds from here on belong to requests that run alone, one each
ALPHABET = ["a", "b", "<", "é", "👩", " "]


@functools.cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder))
        return Tokenizer.load(Path(folder))


@functools.cache
def script(prompt: tuple[int, ...], seed: int, choice: int) -> tuple[tuple[int, ...], str]:
    """What the model answers: ids, after which it ends the answer, and their text."""
    draw = random.Random(f"{prompt}/{seed}/{choice}")
    text = "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(0, 24)))
    return tuple(tokenizer().encode(text, special=False)), text


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def likelihood(token: int, position: int, stream: int) -> Likelihood:
    value = -(position + stream / 16) / 4
    return Likelihood(token, value, [(97, value + 0.125), (token, value)])


class Replica:
    """A replica that keeps its scheduler's promises and checks that the agent keeps its own."""

    def __init__(self, slot: int, incarnation: int) -> None:
        self.hello = ReplicaHello("p", slot, incarnation, SEQUENCES, KV, CONTEXT, "")
        self.running: dict[int, Admit] = {}
        self.emitted: dict[int, int] = {}
        self.unscored: dict[int, list[int]] = {}  # places in the prompt

    def hear(self, message: Any) -> None:
        if isinstance(message, Abort):
            self.running.pop(message.sequence, None)
            return
        assert isinstance(message, Admit)
        assert message.sequence not in self.running
        assert message.new >= 1
        beside = {admit.seed for admit in self.running.values()} | {message.seed}
        assert len(beside) == 1 or max(beside) < ALONE, "something runs beside what runs alone"
        self.running[message.sequence] = message
        self.emitted[message.sequence] = 0
        wanted = message.sampling.prompt_logprobs >= 0
        assert not (wanted and message.position), "the client has those of the prompt"
        self.unscored[message.sequence] = list(range(1, len(message.ids) - message.position)) if wanted else []
        for row in (False, True):  # rows give way to online requests, so neither takes the other's room
            like = [a for a in self.running.values() if a.batch == row]
            assert len(like) <= SEQUENCES
            assert sum(len(a.ids) + a.new for a in like) <= KV
        assert all(len(a.ids) + a.new <= CONTEXT for a in self.running.values())

    def step(self, failing: int | None = None) -> Tokens:
        tokens, ended, logprobs, scored = [], [], [], []
        for number, (sequence, admit) in enumerate(list(self.running.items())):
            if number == failing:
                ended.append((sequence, "error"))
                del self.running[sequence]
                continue
            prompt = tuple(admit.ids[: len(admit.ids) - admit.position])
            places, self.unscored[sequence] = self.unscored[sequence][:3], self.unscored[sequence][3:]
            if places:
                scored.append((sequence, [likelihood(prompt[p], p, 9) for p in places]))
            if self.unscored[sequence]:
                continue
            ids, _ = script(prompt, admit.seed, admit.stream)
            assert list(ids[: admit.position]) == admit.ids[len(prompt) :], "an answer goes on from its own tokens"
            at = admit.position + self.emitted[sequence]
            if at == len(ids):
                assert admit.stop_ids == [257]
                ended.append((sequence, "stop"))
                del self.running[sequence]
                continue
            tokens.append((sequence, ids[at]))
            if admit.sampling.logprobs >= 0:
                found = likelihood(ids[at], at, admit.stream)
                logprobs.append(
                    (sequence, Likelihood(found.token, found.logprob, found.top[: admit.sampling.logprobs]))
                )
            self.emitted[sequence] += 1
            if self.emitted[sequence] == admit.new:
                ended.append((sequence, "length"))
                del self.running[sequence]
        return Tokens(tokens, ended, logprobs, scored)  # type: ignore[arg-type]


class Ask:
    """A request as its entry remembers it."""

    def __init__(self, name: str, body: dict[str, Any], kind: str, seed: int) -> None:
        self.name, self.body, self.kind, self.seed = name, body, kind, seed
        self.alone = seed >= ALONE
        self.attempt = 0
        self.open = False  # an attempt is with the agent
        self.ids: dict[int, list[int]] = {}
        self.sent: dict[int, int] = {}
        self.finished: set[int] = set()
        self.data = b""
        self.done: Done | None = None

    def submit(self, replica: ReplicaHello) -> Submit:
        self.attempt += 1
        self.open = True
        resume = [Resume(c, list(ids), self.sent[c], c in self.finished) for c, ids in self.ids.items()]
        return Submit(
            self.name,
            self.attempt,
            replica.slot,
            replica.incarnation,
            self.kind,  # type: ignore[arg-type]
            json.dumps(self.body).encode(),
            bool(self.body.get("stream")),
            self.seed,
            17,
            resume,
            not self.data,
            self.alone,
        )

    def expected(self) -> list[tuple[str, str, int]]:
        """Text, reason and tokens of each choice."""
        if self.kind == "chat":
            template = tokenizer().template
            assert template is not None
            prompts = ["".join(f"<|user|>{m['content']}<|end|>" for m in self.body["messages"]) + "<|assistant|>"]
        else:
            prompts = self.body["prompt"] if isinstance(self.body["prompt"], list) else [self.body["prompt"]]
        made = []
        for prompt in prompts:
            for _ in range(self.body.get("n", 1)):
                ids, _ = script(tuple(tokenizer().encode(prompt, special=False)), self.seed, len(made))
                text, reason, count = self._answer(list(ids))
                echo = prompt if self.body.get("echo") else ""
                made.append((echo + text, reason, count))
        return made

    def rated(self, choice: int, text: str, count: int) -> list[tuple[bytes, int, float | None]]:
        """Bytes, offset and log-probability of every token that a choice shows."""
        prompts = self.body.get("prompt", "")
        prompt = prompts if isinstance(prompts, str) else prompts[choice // self.body.get("n", 1)]
        before = tokenizer().encode(prompt, special=False)
        if self.kind == "chat":
            before = []
            for m in self.body["messages"]:
                before += tokenizer().encode(f"<|user|>{m['content']}<|end|>", special=False)
            before += tokenizer().encode("<|assistant|>", special=False)
        ids = list(script(tuple(before), self.seed, choice)[0])[:count]
        made: list[tuple[bytes, int, float | None]] = []
        start = 0
        if self.body.get("echo"):
            start = len(prompt)
            for place, token in enumerate(before):
                value = likelihood(token, place, 9).logprob if place else None
                made.append((tokenizer().piece(token), place, value))
        for place, token in enumerate(ids):
            done = b"".join(map(tokenizer().piece, ids[:place])).decode(errors="ignore")
            if start + len(done) < len(text) or not self.body.get("stop"):
                value = likelihood(token, place, choice).logprob
                made.append((tokenizer().piece(token), start + len(done), value))
        return made

    def check_rated(self, choice: int, found: list[dict[str, Any]], text: str, count: int) -> None:
        """found: the `logprobs` objects of a choice, in order."""
        expected = self.rated(choice, text, count)
        if self.kind == "chat":
            tokens = [token for one in found for token in one["content"]]
            assert [(bytes(t["bytes"]), t["logprob"]) for t in tokens] == [(b, v) for b, _, v in expected]
            assert all(len(t["top_logprobs"]) == self.body["top_logprobs"] for t in tokens)
            return
        offsets = [offset for one in found for offset in one["text_offset"]]
        values = [value for one in found for value in one["token_logprobs"]]
        names = [name for one in found for name in one["tokens"]]
        tops = [top for one in found for top in one["top_logprobs"]]
        assert list(zip(names, offsets, values, strict=True)) == [(name(b), at, v) for b, at, v in expected]
        for piece, top, value in zip(names, tops, values, strict=True):
            assert top is None if value is None else top[piece] == pytest.approx(value, abs=0.126)

    def _answer(self, ids: list[int]) -> tuple[str, str, int]:
        longest, stops = self.body["max_tokens"], self.body.get("stop", [])
        for count in range(1, min(len(ids), longest) + 1):
            text, stopped = cut(tokenizer().decode(ids[:count]).rstrip("\ufffd"), stops)
            if stopped:
                return text, "stop", count
        text = tokenizer().decode(ids[:longest])
        return text, "length" if len(ids) >= longest else "stop", min(len(ids), longest)

    def check(self) -> None:
        """The client has the whole answer, once."""
        assert self.done is not None
        expected = self.expected()
        completion = sum(count for _, _, count in expected)
        assert self.done.completion_tokens == completion
        if not self.body.get("stream"):
            assert self.data == b""
            self.check_body(self.done.data, self.done.prompt_tokens, completion)
            return
        events = (self.data + self.done.data).decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(e.removeprefix("data: ")) for e in events[:-2]]
        if self.body.get("stream_options"):
            assert chunks.pop()["usage"]["completion_tokens"] == completion
        for index, (text, reason, count) in enumerate(expected):
            own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            if self.kind == "chat":
                assert own[0]["delta"] == {"role": "assistant", "content": ""}
                got = [c["delta"].get("content", "") for c in own]
                assert not any("role" in c["delta"] for c in own[1:])
            else:
                got = [c["text"] for c in own]
            assert "".join(got) == text
            if self.body.get("logprobs") is not None:
                self.check_rated(index, [c["logprobs"] for c in own if c["logprobs"]], text, count)
                assert all(c["logprobs"] for c, part in zip(own, got, strict=True) if part), (
                    "text without its tokens"
                )
                if self.kind == "completion":
                    for number, chunk in enumerate(own):
                        if chunk["logprobs"]:
                            assert chunk["logprobs"]["text_offset"][0] == len("".join(got[:number]))
            else:
                assert not any(c["logprobs"] for c in own)
            assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [reason]

    def check_body(self, data: bytes, prompt: int, completion: int) -> None:
        expected = self.expected()
        body = json.loads(data)
        texts = [c["message"]["content"] if "message" in c else c["text"] for c in body["choices"]]
        assert texts == [text for text, _, _ in expected]
        assert [c["finish_reason"] for c in body["choices"]] == [reason for _, reason, _ in expected]
        usage = body["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, completion)
        for choice, (text, _, count) in zip(body["choices"], expected, strict=True):
            if self.body.get("logprobs") is None:
                assert choice["logprobs"] is None
            else:
                self.check_rated(choice["index"], [choice["logprobs"]], text, count)


bodies = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 40)},
    optional={
        "n": st.integers(1, 5),
        "stop": st.lists(st.text(st.sampled_from("ab<é"), min_size=1, max_size=3), min_size=1, max_size=3),
        "stream": st.just(True),
        "logprobs": st.integers(0, 2),
        "echo": st.just(True),
        "nothing": st.just(True),
    },
)
prompts = st.text("xy", min_size=1, max_size=6)


class RelayMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        pool = Pool(name="p", replicas=SLOTS, max_sequences=SEQUENCES)
        self.relay = Relay(Deployment("d", model=Model(path="/m", context=CONTEXT), pool=(pool,)), tokenizer())
        self.now = 0.0
        self.replicas: dict[int, Replica] = {}
        self.incarnation = 0
        self.asks: dict[tuple[bytes, str], Ask] = {}
        self.rows: dict[str, Ask] = {}  # waiting at the agent
        self.lost: dict[str, Ask] = {}
        self.number = 0
        for slot in range(SLOTS):
            self.up(slot)

    # --- the surroundings -----------------------------------------------------------------------------------

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, ToReplica):
                self.replicas[action.slot].hear(action.message)
            elif isinstance(action, ToPeer):
                self.hear(action.peer, action.message)
            elif isinstance(action, RowEnded):
                ask = self.rows.pop(action.key)
                assert action.status == 200
                ask.check_body(action.body, action.prompt_tokens, action.completion_tokens)
            else:
                assert isinstance(action, RowLost)
                self.lost[action.key] = self.rows.pop(action.key)

    def hear(self, peer: bytes, message: Any) -> None:
        if isinstance(message, Frames):
            assert message.frames
            for frame in message.frames:
                ask = self.asks[peer, frame.request]
                assert ask.open
                assert frame.attempt == ask.attempt
                ids = ask.ids.setdefault(frame.choice, [])
                assert frame.index == len(ids)
                assert frame.choice not in ask.finished or not (frame.ids or frame.data)
                ids += frame.ids
                ask.sent[frame.choice] = frame.sent
                ask.data += frame.data
                if frame.finished:
                    ask.finished.add(frame.choice)
            return
        ask = self.asks[peer, message.request]
        assert ask.open, "a second ending"
        assert message.attempt == ask.attempt
        ask.open = False
        if isinstance(message, Done):
            ask.done = message
            ask.check()
            del self.asks[peer, message.request]
        elif isinstance(message, Failed):
            assert message.retry, message.message
        else:
            assert isinstance(message, Busy)

    def tick(self) -> None:
        self.now += 0.1

    # --- what happens ---------------------------------------------------------------------------------------

    @rule(
        peer=st.sampled_from([b"e1", b"e2"]),
        body=bodies,
        texts=st.lists(prompts, min_size=1, max_size=2),
        chat=st.booleans(),
        usage=st.booleans(),
        slot=st.integers(0, SLOTS - 1),
        seed=st.integers(0, 3),
        alone=st.sampled_from([False, False, False, True]),
    )
    def ask(
        self,
        peer: bytes,
        body: dict[str, Any],
        texts: list[str],
        chat: bool,
        usage: bool,
        slot: int,
        seed: int,
        alone: bool,
    ) -> None:
        self.number += 1
        seed = ALONE + self.number if alone else seed
        ask = self.make(f"r{self.number}", dict(body), texts, chat, seed)
        if usage and body.get("stream"):
            ask.body["stream_options"] = {"include_usage": True}
        self.asks[peer, ask.name] = ask
        self.send(peer, ask, slot)

    def make(self, name: str, body: dict[str, Any], texts: list[str], chat: bool, seed: int) -> Ask:
        nothing = body.pop("nothing", False)
        if chat:
            body["messages"] = [{"role": "user", "content": text} for text in texts]
            body.pop("echo", None)
            if "logprobs" in body:
                body["logprobs"], body["top_logprobs"] = True, body["logprobs"]
        else:
            body["prompt"] = texts if len(texts) > 1 else texts[0]
            if nothing:
                body["max_tokens"], body["echo"] = 0, True
        return Ask(name, {"model": "m", **body}, "chat" if chat else "completion", seed)

    def send(self, peer: bytes, ask: Ask, slot: int) -> None:
        replica = self.replicas.get(slot)
        if replica is not None:
            message = ask.submit(replica.hello)
            self.perform(self.relay.submit(peer, message, self.now))

    @rule(slot=st.integers(0, SLOTS - 1))
    def ask_again(self, slot: int) -> None:
        for (peer, _), ask in list(self.asks.items()):
            if not ask.open:
                self.send(peer, ask, slot)

    @rule(
        body=bodies,
        text=prompts,
        chat=st.booleans(),
        slot=st.integers(0, SLOTS - 1),
        seed=st.integers(0, 3),
        alone=st.sampled_from([False, False, False, True]),
    )
    def row(self, body: dict[str, Any], text: str, chat: bool, slot: int, seed: int, alone: bool) -> None:
        if self.relay.free(slot) > 0:
            self.number += 1
            seed = ALONE + self.number if alone else seed
            key = f"row{self.number}"
            self.rows[key] = self.make(key, {**body, "stream": False}, [text], chat, seed)
            self.run_row(key, slot)

    def run_row(self, key: str, slot: int) -> None:
        ask = self.rows[key]
        body = json.dumps(ask.body).encode()
        actions = self.relay.row(key, ask.kind, body, ask.seed, slot, self.now, alone=ask.alone)  # type: ignore[arg-type]
        self.perform(actions)

    @rule(slot=st.integers(0, SLOTS - 1), failing=st.sampled_from([None] * 9 + [0]))
    def step(self, slot: int, failing: int | None) -> None:
        self.tick()
        if slot in self.replicas:
            self.perform(self.relay.tokens(slot, self.replicas[slot].step(failing), self.now))

    @rule(slot=st.integers(0, SLOTS - 1))
    def steps(self, slot: int) -> None:
        for _ in range(5):
            self.step(slot, None)

    @rule()
    def flush(self) -> None:
        self.tick()
        self.perform(self.relay.flush(self.now))

    @rule(slot=st.integers(0, SLOTS - 1), own_exit=st.booleans())
    def die(self, slot: int, own_exit: bool) -> None:
        if self.replicas.pop(slot, None):
            self.perform(self.relay.replica_gone(slot, own_exit=own_exit))

    @rule(slot=st.integers(0, SLOTS - 1))
    def up(self, slot: int) -> None:
        if slot not in self.replicas:
            self.incarnation += 1
            self.replicas[slot] = Replica(slot, self.incarnation)
            self.perform(self.relay.replica_up(self.replicas[slot].hello))

    @rule(slot=st.integers(0, SLOTS - 1), count=st.integers(1, 6), flushed=st.booleans(), own_exit=st.booleans())
    def interrupt(self, slot: int, count: int, flushed: bool, own_exit: bool) -> None:
        for _ in range(count):
            self.step(slot, None)
        if flushed:
            self.flush()
        self.die(slot, own_exit)
        self.up(slot)
        self.ask_again(slot)
        self.ask_again(1 - slot)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.asks:
            peer, name = data.draw(st.sampled_from(sorted(self.asks)))
            del self.asks[peer, name]
            self.perform(self.relay.cancel(peer, name))

    @rule(data=st.data())
    def a_row_is_done_elsewhere(self, data: st.DataObject) -> None:
        if self.rows:
            key = data.draw(st.sampled_from(sorted(self.rows)))
            del self.rows[key]
            self.perform(self.relay.cancel_row(key))

    @rule(peer=st.sampled_from([b"e1", b"e2"]))
    def entry_dies(self, peer: bytes) -> None:
        for key in [key for key in self.asks if key[0] == peer]:
            del self.asks[key]
        self.perform(self.relay.peer_gone(peer))

    @rule(slot=st.integers(0, SLOTS - 1))
    def late_tokens(self, slot: int) -> None:
        self.perform(
            self.relay.tokens(slot, Tokens([(0, 65), (10**6, 65)], [(0, "stop"), (10**6, "error")]), self.now)
        )

    # --- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def the_relay_knows_what_is_open(self) -> None:
        if hasattr(self, "relay"):
            busy = any(ask.open for ask in self.asks.values()) or bool(self.rows)
            assert self.relay.idle == (not busy)
            for load in self.relay.room():
                slot, outstanding = load.slot, load.tokens
                assert 0 <= load.kv <= 1
                left = sum(
                    len(a.ids)
                    + a.new
                    - (self.replicas[slot].emitted[s] + len(a.ids) if self.replicas[slot].emitted[s] else 0)
                    for s, a in self.replicas[slot].running.items()
                )
                assert outstanding >= left
                assert outstanding == 0 or busy

    def teardown(self) -> None:
        """With time and replicas, everything ends well."""
        if not hasattr(self, "relay"):
            return
        for slot in range(SLOTS):
            self.up(slot)
        for turn in range(400):
            if turn < 24 and turn % 2:  # first, everything is interrupted again and again
                self.die(turn // 2 % SLOTS, own_exit=False)
                self.up(turn // 2 % SLOTS)
            for key, ask in list(self.lost.items()):
                self.rows[key] = ask
                del self.lost[key]
                self.run_row(key, self.number % SLOTS)
            for slot in range(SLOTS):
                self.ask_again(slot)
                for _ in range(1 + turn % 3):
                    self.step(slot, None)
            if turn % 5:
                self.flush()
            if not (self.asks or self.rows or self.lost):
                break
        assert not self.asks
        assert not self.rows
        assert self.relay.idle
        assert self.relay.room() == [Load(slot, 0) for slot in range(SLOTS)]
        assert not any(replica.running for replica in self.replicas.values())
        self.now += 10
        assert self.relay.flush(self.now) == []


RelayMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRelayMachine = pytest.mark.timeout(240)(RelayMachine.TestCase)
