"""One choice of a request: ids in, text and frames out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from exahpc.openai.answers import Finish
from exahpc.openai.text import TextStream
from exahpc.wire.messages import Admit, Frame, Resume, Sampling

if TYPE_CHECKING:
    from exahpc.agent.job import Job


class Choice:
    """One choice: one sequence of the replica, now or later.

    index: among the choices of the request, and the sampler's stream; count: tokens emitted; fresh: those that
    no frame has carried yet; need: tokens that its sequence may come to hold; left: tokens still to be prefilled
    or generated; sequence: 0 until it has a place.
    """

    __slots__ = (
        "_pending", "_text", "_told", "count", "fresh", "index", "job", "left", "need", "new", "parts", "prefill",
        "prompt", "reason", "replayed", "sent", "sequence",
    )  # fmt: skip

    def __init__(self, job: Job, index: int, prompt: list[int], new: int, text: TextStream) -> None:
        self.job, self.index, self.prompt, self.new = job, index, prompt, new
        self._text = text
        self.parts: list[str] = []  # text of a request that does not stream
        self._pending = ""  # text that no frame has carried yet
        self._told = False  # a frame said that this choice has ended
        self.replayed: list[int] = []
        self.fresh: list[int] = []
        self.count = self.sent = self.sequence = 0
        self.need = len(prompt) + new
        self.prefill = len(prompt)
        self.left = self.need
        self.reason: Finish | None = None

    def replay(self, resume: Resume) -> Finish | None:
        """Take up where another attempt was interrupted. Returns how this choice has ended, if it has.

        The text is a function of the ids, so what the client lacks is what lies beyond `resume.sent`.
        """
        text = self._text.push(resume.ids)
        self.replayed = resume.ids
        self.count = len(resume.ids)
        self.prefill = len(self.prompt) + self.count
        if self.job.events is None:
            self.parts.append(text)
        else:
            self.sent = min(resume.sent, len(text))
            self._pending = text[self.sent :]
        self._told = resume.finished
        if self._text.stopped:
            return "stop"
        if self.count >= self.new:
            return "length"
        return "stop" if resume.finished else None  # by a token that ends the answer

    def admit(self, sequence: int, eos_ids: Sequence[int]) -> Admit:
        """The message that starts it."""
        request = self.job.request
        return Admit(
            sequence=sequence,
            ids=[*self.prompt, *self.replayed],
            new=self.new - self.count,
            position=self.count,
            seed=self.job.seed,
            stream=self.index,
            stop_ids=[] if request.ignore_eos else list(eos_ids),
            sampling=Sampling(request.temperature, request.top_p),
            batch=self.job.row,
        )

    def push(self, token: int) -> Literal["quiet", "text", "stopped"]:
        """Take one token: nothing to show yet, new text, or the end of a stop string."""
        self.count += 1
        if self.job.peer is not None:
            self.fresh.append(token)
        text = self._text.push((token,))
        if text:
            if self.job.events is None:
                self.parts.append(text)
            else:
                self._pending += text
        if self._text.stopped:
            return "stopped"
        return "text" if text else "quiet"

    def end(self, reason: Finish) -> None:
        """No more tokens come: what was held back comes out."""
        self.reason, self.left = reason, 0
        if self.job.events is None:
            self.parts.append(self._text.finish())
        elif not self._told:
            self._pending += self._text.finish()

    @property
    def untold(self) -> bool:
        """Whether a frame would say anything new."""
        return bool(self.fresh or self._pending) or (self.reason is not None and not self._told)

    def take_bytes(self) -> bytes:
        """Events not sent yet."""
        events = self.job.events
        if events is None:
            return b""
        parts = []
        if self._pending:
            parts.append(events.text(self.index, self._pending))
            self.sent += len(self._pending)
            self._pending = ""
        if self.reason is not None and not self._told:
            parts.append(events.finish(self.index, self.reason))
        self._told = self.reason is not None
        return b"".join(parts)

    def take_frame(self) -> Frame:
        """Everything not told yet, as one frame."""
        job = self.job
        data = self.take_bytes()
        if data and not job.begun:
            data = job.opening() + data
        fresh, self.fresh = self.fresh, []
        self._told = self.reason is not None
        return Frame(
            job.name,
            job.attempt,
            self.index,
            self.count - len(fresh),
            fresh,
            self.sent,
            data,
            self.reason is not None,
        )
