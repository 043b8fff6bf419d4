"""One choice of a request: ids in, text and frames out. Pure.

Where no token can end the answer (no stop strings), ids become text only when text is wanted: for a frame, or at
the end. All at once they cost a small part of what they cost one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from exahpc.openai.answers import NO_LOGPROBS, Finish
from exahpc.openai.text import TextStream
from exahpc.wire.messages import Admit, Frame, Resume, Sampling

if TYPE_CHECKING:
    from exahpc.agent.job import Job
    from exahpc.agent.prepared import Prompt
    from exahpc.agent.service import Timing

_TOGETHER = 32
"""Ids of a batch row that become text at once: thousands would hold up the streams beside it."""


class Choice:
    """One choice: one sequence of the replica, now or later.

    index: among the choices of the request, and the sampler's stream; count: tokens emitted; fresh: those that
    no frame has carried yet; kept: those before them, of a batch row; carried: how many frames have; cached:
    tokens of the prompt that the replica need not compute; need: tokens that its sequence may come to hold; left:
    tokens still to be prefilled or generated; sequence: 0 until it has a place, from when on there is a timing.
    """

    timing: Timing

    __slots__ = (
        "_late", "_pending", "_text", "_told", "cached", "carried", "count", "fresh", "index", "job", "kept",
        "left", "need", "new", "parts", "prefill", "prompt", "reason", "replayed", "sent", "sequence", "timing",
    )  # fmt: skip

    def __init__(self, job: Job, index: int, prompt: Prompt, text: TextStream) -> None:
        self.job, self.index, self.prompt, self.new = job, index, prompt, prompt.new
        self._text = text
        self._late = not job.request.stop  # the text of `fresh` is still to be made
        self.parts: list[str] = []  # text of a request that does not stream
        self._pending = ""  # text that no frame has carried yet
        if prompt.echo:
            self._show(prompt.echo)
        self._told = False  # a frame said that this choice has ended
        self.replayed: list[int] = []
        self.fresh: list[int] = []
        self.kept = array("I")
        self.cached = self.carried = self.count = self.sent = self.sequence = 0
        self.prefill = len(prompt.ids)
        self.need = self.prefill + self.new
        self.left = self.prefill + max(1, self.new)  # the engine draws one token even if none is asked for
        self.reason: Finish | None = None

    def replay(self, resume: Resume) -> Finish | None:
        """Take up where another attempt was interrupted. Returns how this choice has ended, if it has.

        The text is a function of the ids, so what the client lacks is what lies beyond `resume.sent`.
        """
        text = self._text.push(resume.ids)
        self.replayed = resume.ids
        self.count = self.carried = len(resume.ids)
        self.prefill = len(self.prompt.ids) + self.count
        self._show(text)
        if self.job.events is not None:
            self.sent = min(resume.sent, len(self._pending))
            self._pending = self._pending[self.sent :]
        self._told = resume.finished
        if self._text.stopped:
            return "stop"
        if self.count >= self.new:
            return "length"
        return "stop" if resume.finished else None  # by a token that ends the answer

    def admit(self, sequence: int, eos_ids: Sequence[int]) -> Admit:
        """The message that starts it."""
        request = self.job.request
        stops = request.stop_token_ids if request.ignore_eos else (*eos_ids, *request.stop_token_ids)
        return Admit(
            sequence=sequence,
            ids=[*self.prompt.ids, *self.replayed],
            new=max(1, self.new - self.count),
            position=self.count,
            seed=self.job.seed,
            stream=self.index,
            stop_ids=list(stops),
            sampling=self._sampling(),
            batch=self.job.row,
            request=self.job.name if self.job.told else "",
        )

    def _sampling(self) -> Sampling:
        return self.job.request.sampling

    def push(self, token: int) -> Literal["quiet", "text", "stopped"]:
        """Take one token: nothing to show yet, new text, or the end of a stop string."""
        self.count += 1
        self.fresh.append(token)
        if self._late:
            if self.job.peer is None and len(self.fresh) >= _TOGETHER:
                self._catch_up()  # no frame ever asks
                self.kept.extend(self.fresh)
                self.fresh.clear()
            return "quiet" if self.job.events is None else "text"
        text = self._text.push((token,))
        self._show(text)
        if self._text.stopped:
            return "stopped"
        return "text" if text else "quiet"

    def end(self, reason: Finish) -> None:
        """No more tokens come: what was held back comes out."""
        self._catch_up()
        self._late = False
        self.reason, self.left = reason, 0
        if self.job.events is None or not self._told:
            self._show(self._text.finish())

    def _catch_up(self) -> None:
        if self._late and self.fresh:
            self._show(self._text.push(self.fresh))

    def _show(self, text: str) -> None:
        """Text for the client."""
        if self.job.events is None:
            self.parts.append(text)
        else:
            self._pending += text

    @property
    def untold(self) -> bool:
        """Whether a frame would say anything new."""
        return bool(self.fresh or self._pending) or (self.reason is not None and not self._told)

    def take_bytes(self) -> bytes:
        """Events not sent yet."""
        events = self.job.events
        if events is None:
            return b""
        data = b""
        if self._pending:
            data = events.text(self.index, self._pending)
            self.sent += len(self._pending)
            self._pending = ""
        if self.reason is not None and not self._told:
            self._told = True
            data += events.finish(self.index, self.reason)
        return data

    def token_ids(self) -> bytes:
        """All ids of a batch row's choice, u32."""
        return (self.kept + array("I", self.fresh)).tobytes()

    def answered(self) -> tuple[str, Finish, bytes]:
        """For the body of a request that does not stream: text, reason, log-probabilities."""
        return "".join(self.parts), self.reason or "stop", NO_LOGPROBS

    def take_frame(self) -> Frame:
        """Everything not told yet, as one frame."""
        job = self.job
        self._catch_up()
        data = self.take_bytes()
        if data and not job.begun:
            data = job.opening() + data
        fresh, self.fresh = self.fresh, []
        self._told = self.reason is not None
        before = self.carried
        self.carried += len(fresh)
        return Frame(job.name, job.attempt, self.index, before, fresh, self.sent, data, self.reason is not None)
