"""Requests in flight: an entry's or a batch row. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from exahpc.agent.choice import Choice
from exahpc.agent.prepared import Prepared, Prompt
from exahpc.agent.rated import RatedChoice
from exahpc.agent.tokenizer import Tokenizer
from exahpc.openai.answers import DONE, EventFormat, answer
from exahpc.openai.body import Kind
from exahpc.openai.text import TextStream
from exahpc.wire.messages import Resume


class Job:
    """One attempt of one request (peer: the entry), or one batch row (peer None).

    came: when the agent got it; begun: the client has a byte of the stream; alone: nothing may run beside it;
    seed: the body's, else the one that was drawn at admission;
    open: choices that have not ended; odd: one that has looks senseless; told: what happens to it is logged.
    """

    __slots__ = (
        "alone", "attempt", "begun", "came", "choices", "created", "events", "kind", "name", "odd", "open", "peer",
        "prepared", "prompt_tokens", "request", "seed", "slot", "told",
    )  # fmt: skip

    def __init__(
        self,
        peer: bytes | None,
        name: str,
        attempt: int,
        slot: int,
        kind: Kind,
        prepared: Prepared,
        seed: int,
        created: int,
        *,
        stream: bool,
        begun: bool,
        alone: bool = False,
        told: bool = False,
    ) -> None:
        self.peer, self.name, self.attempt, self.slot = peer, name, attempt, slot
        self.kind, self.prepared, self.created = kind, prepared, created
        self.request = request = prepared.request
        own = request.seed  # not negative below: the generator is counter-based
        self.seed = (seed if own is None else own) % 2**63
        self.events: EventFormat | None = None
        if stream:
            usage = request.include_usage
            self.events = EventFormat(kind, name, created, request.model, include_usage=usage)
        self.begun, self.alone, self.told, self.came = begun, alone, told, 0.0
        self.choices: list[Choice] = []
        self.open = 0
        self.odd = False
        self.prompt_tokens = sum(len(prompt.ids) for prompt in prepared.prompts)

    def unfold(self, resume: Sequence[Resume], tokenizer: Tokenizer) -> list[Choice]:
        """Make the choices, each where `resume` says that it stands; returns those that have not ended."""
        earlier = {r.choice: r for r in resume} if self.events is not None or not self.request.rated else {}
        waiting = []
        for prompt in self.prepared.prompts:
            for _ in range(self.request.best_of):
                choice = self._choice(len(self.choices), prompt, tokenizer)
                self.choices.append(choice)
                known = earlier.get(choice.index)
                reason = choice.replay(known) if known is not None else None
                if prompt.new == 0 and not self.request.rated:
                    reason = "length"  # the prompt is the answer
                if reason is None:
                    waiting.append(choice)
                else:
                    choice.end(reason)
        self.open = len(waiting)
        return waiting

    def _choice(self, index: int, prompt: Prompt, tokenizer: Tokenizer) -> Choice:
        text = TextStream(tokenizer.decoder(prompt.ids), self.request.stop)
        if self.request.rated:
            return RatedChoice(self, index, prompt, text, tokenizer)
        return Choice(self, index, prompt, text)

    def _shown(self) -> list[Choice]:
        """The choices of the answer: of each prompt the likeliest, in falling order, where more were made."""
        n, made = self.request.n, self.request.best_of
        if made == n:
            return self.choices
        groups = [self.choices[at : at + made] for at in range(0, len(self.choices), made)]
        return [choice for group in groups for choice in sorted(group, key=_unlikely)[:n]]

    @property
    def row(self) -> bool:
        return self.peer is None

    def close(self) -> None:
        """It has ended and was told: let go of its choices, which hold it. Circles cost a search for garbage."""
        self.choices = []

    def token_ids(self) -> bytes:
        """Of a row: of the first choice of its answer, u32."""
        return self._shown()[0].token_ids()

    @property
    def completion_tokens(self) -> int:
        """Tokens emitted by all choices; a token that only ended one is not counted."""
        return sum(choice.count for choice in self.choices)

    def opening(self) -> bytes:
        """The role chunks of all choices, once, in front of the first bytes."""
        if self.begun or self.events is None:
            return b""
        self.begun = True
        return b"".join(self.events.role(choice.index) for choice in self.choices)

    def ending(self) -> bytes:
        """The last bytes: what no frame has carried yet and [DONE], or the whole body."""
        if self.events is None:
            name = self.name if not self.row else _ROW_PREFIX[self.kind] + self.name
            made = [choice.answered() for choice in self._shown()]
            tokens = self.prompt_tokens, self.completion_tokens
            return answer(self.kind, name, self.created, self.request.model, made, *tokens)
        parts = [self.opening(), *(choice.take_bytes() for choice in self.choices)]
        if self.request.include_usage:
            parts.append(self.events.usage(self.prompt_tokens, self.completion_tokens))
        return b"".join([*parts, DONE])


def _unlikely(choice: Choice) -> float:
    return -choice.mean if isinstance(choice, RatedChoice) else 0.0


_ROW_PREFIX: dict[Kind, str] = {"chat": "chatcmpl-", "completion": "cmpl-"}
