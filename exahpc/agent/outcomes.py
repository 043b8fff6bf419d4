"""The ending of a request or of a batch row, as the message or action that tells it. Pure.

peer: the entry that waits for it, None for a row.
"""

from __future__ import annotations

from exahpc.agent.actions import Action, RowEnded, RowLost, Served, ToPeer
from exahpc.agent.job import Job
from exahpc.errors import RequestError
from exahpc.openai.errors import error_body
from exahpc.wire.messages import Busy, Done, Failed


def completed(job: Job) -> Action:
    """All its choices have ended."""
    tokens = job.prompt_tokens, job.completion_tokens
    if job.peer is None:
        return RowEnded(job.name, 200, job.ending(), *tokens, _served(job))
    return ToPeer(job.peer, Done(job.name, job.attempt, job.ending(), *tokens))


def _served(job: Job) -> Served | None:
    ran = [choice for choice in job.choices if choice.sequence]
    if not ran:
        return None  # the prompt was the answer
    started = min(choice.timing.began for choice in ran)
    first = min(choice.timing.began + choice.timing.ttft for choice in ran)
    cached = sum(choice.cached for choice in ran)
    return Served(job.slot, started, first, cached, job.token_ids())


def refused(peer: bytes | None, name: str, attempt: int, error: RequestError) -> Action:
    """It would fail anywhere."""
    if peer is None:
        return RowEnded(name, error.status, error_body(error.message, error.type, error.param, error.code), 0, 0)
    failed = Failed(name, attempt, error.status, error.message, error.type, error.param, error.code)
    return ToPeer(peer, failed)


def interrupted(job: Job, why: str, *, own_exit: bool) -> Action:
    """This attempt has ended, another one may succeed. own_exit: its replica ended by itself under it."""
    if job.peer is None:
        return RowLost(job.name, own_exit)
    return ToPeer(job.peer, Failed(job.name, job.attempt, 503, why, retry=True, own_exit=own_exit))


def turned_away(job: Job) -> Action:
    """It did not get a place, and may go on elsewhere."""
    if job.peer is None:
        return RowLost(job.name, False)
    return ToPeer(job.peer, Busy(job.name, job.attempt))
