"""A choice whose tokens come with their log-probabilities. Pure.

Text, ids and log-probabilities leave together, and only when nothing is held back: when all text of all tokens so
far is certain. So a chunk holds whole tokens and exactly their text, and what an entry knows of an interrupted
stream (ids, characters sent) says which tokens the client has: the others are made again.

Without a stream nothing leaves before the end, and an entry keeps no log-probabilities. Such a request does not
tell it the ids either, so it begins anew when it is sent again. So does one that shows the best of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from exahpc.agent.choice import Choice
from exahpc.agent.tokenizer import Tokenizer
from exahpc.openai.answers import NO_LOGPROBS, Finish
from exahpc.openai.logprobs import LOWEST, Rated, logprobs, offsets
from exahpc.openai.text import TextStream
from exahpc.wire.messages import Frame, Likelihood, Resume, Sampling, Tokens

if TYPE_CHECKING:
    from exahpc.agent.job import Job
    from exahpc.agent.prepared import Prompt


class RatedChoice(Choice):
    """See above. total: sum of the log-probabilities of the tokens drawn so far."""

    __slots__ = (
        "_held_ids", "_held_rated", "_held_text", "_next", "_opened", "_out", "_prompt", "_rated", "_tokenizer",
        "total",
    )  # fmt: skip

    def __init__(self, job: Job, index: int, prompt: Prompt, text: TextStream, tokenizer: Tokenizer) -> None:
        super().__init__(job, index, prompt, text)
        self._late = False
        self._tokenizer = tokenizer
        self._next: Likelihood | None = None
        self._prompt: list[Likelihood] = []
        self._rated: list[Rated] = []
        self._held_text, self._held_ids, self._held_rated = "", list[int](), list[Rated]()
        self._out = len(prompt.echo)  # characters that are certain, held back here or not
        self._opened = False
        self.total = 0.0
        self._pending = ""  # the prompt's text waits for its log-probabilities
        self.parts.clear()

    @property
    def mean(self) -> float:
        """Log-probability a token; lowest for an empty answer."""
        return self.total / self.count if self.count else float("-inf")

    # --- what comes -----------------------------------------------------------------------------------------

    def replay(self, resume: Resume) -> Finish | None:
        if not (resume.ids or resume.sent or resume.finished):
            return None
        self._opened = True
        self._pending = self.prompt.echo
        reason = super().replay(resume)
        self._out = self.sent + len(self._pending)
        return reason

    def hear(self, likelihood: Likelihood) -> None:
        """Of the token that `push` is about to bring."""
        self._next = likelihood

    def hear_prompt(self, likelihoods: Sequence[Likelihood]) -> None:
        """Of the next tokens of the prompt, from its second on; all come before the first `push`."""
        self._prompt += likelihoods

    def push(self, token: int) -> Literal["quiet", "text", "stopped"]:
        self._open()
        if self.new == 0:
            return "quiet"  # nothing was asked for but the prompt
        likelihood = self._next or Likelihood(token, LOWEST, [])
        self._next = None
        self.count += 1
        self.total += likelihood.logprob
        self._held_ids.append(token)
        self._held_rated.append(self._entry(likelihood, self._out + self._text.start(token)))
        text = self._text.push((token,))
        self._held_text += text
        self._out += len(text)
        if self._text.stopped:
            self._held_rated = [rated for rated in self._held_rated if rated.offset < self._out]
            return "stopped"
        if not self._text.settled:
            return "quiet"
        self._let_go()
        return "text"

    def end(self, reason: Finish) -> None:
        self._open()
        self._let_go()
        super().end("length" if self.new == 0 else reason)

    # --- what goes ------------------------------------------------------------------------------------------

    @property
    def untold(self) -> bool:
        return super().untold or bool(self._rated or self._held_ids)

    def take_bytes(self) -> bytes:
        events, rated = self.job.events, self._rated
        if events is None or not rated:
            return super().take_bytes()
        self._rated = []
        data = events.rated(self.index, self._pending, logprobs(self.job.kind, rated))
        self.sent += len(self._pending)
        self._pending = ""
        return data + super().take_bytes()

    def take_frame(self) -> Frame:
        if self.job.events is not None:
            return super().take_frame()
        self._told = self.reason is not None
        self.fresh.clear()
        return Frame(self.job.name, self.job.attempt, self.index, 0, [], 0, b"")  # a sign of life

    def answered(self) -> tuple[str, Finish, bytes]:
        shown = self.job.request.logprobs is not None
        text, reason, _ = super().answered()
        return text, reason, logprobs(self.job.kind, self._rated) if shown else NO_LOGPROBS

    # --- inside ---------------------------------------------------------------------------------------------

    def _sampling(self) -> Sampling:
        sampling = super()._sampling()
        return msgspec.structs.replace(sampling, prompt_logprobs=-1) if self._opened else sampling

    def _open(self) -> None:
        """The prompt is computed: if it is part of the answer, it comes first."""
        if self._opened:
            return
        self._opened = True
        echo, ids = self.prompt.echo, self.prompt.ids
        self._show(echo)
        if self.job.request.sampling.prompt_logprobs >= 0:
            first, *starts = offsets(echo, map(self._tokenizer.piece, ids))
            self._rated.append(Rated(self._tokenizer.piece(ids[0]), first, None, ()))
            self._rated += map(self._entry, self._prompt, starts)

    def _let_go(self) -> None:
        """Nothing is held back any more."""
        self._show(self._held_text)
        self._held_text = ""
        self.fresh += self._held_ids
        self._held_ids = []
        self._rated += self._held_rated
        self._held_rated = []

    def _entry(self, likelihood: Likelihood, offset: int) -> Rated:
        piece = self._tokenizer.piece
        top = [(piece(token), value) for token, value in likelihood.top]
        return Rated(piece(likelihood.token), offset, likelihood.logprob, top)


def hear(message: Tokens, running: Mapping[int, Choice]) -> None:
    """The log-probabilities of a step, before its tokens. running: by sequence id; others are passed over."""
    for sequence, several in message.prompt:
        choice = running.get(sequence)
        if isinstance(choice, RatedChoice):
            choice.hear_prompt(several)
    for sequence, likelihood in message.logprobs:
        choice = running.get(sequence)
        if isinstance(choice, RatedChoice):
            choice.hear(likelihood)
