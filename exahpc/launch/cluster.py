"""The Slurm launcher: one job for the head, one job array a pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from exahpc.broker.journal import replay
from exahpc.broker.leads import in_advance
from exahpc.broker.learned import Learned
from exahpc.deployment.spec import Deployment
from exahpc.errors import SlurmError
from exahpc.slurm.api import ENDED, JobRecord, SlurmClient, Submission, Unanswered
from exahpc.slurm.jobbook import JobBook
from exahpc.slurm.submission import head_submission, pool_name, pool_submission
from exahpc.wire.folder import Folder


def submissions(deployment: Deployment, folder: Path, scripts: Path) -> dict[str, Submission]:
    """What is submitted, in order: "head" (unless it shares a task or runs here), then each pool by its name."""
    python = deployment.launcher.python or "python3"
    made: dict[str, Submission] = {}
    if deployment.head.placement == "job":
        made["head"] = head_submission(deployment, folder, python, scripts)
    for pool in deployment.pool:
        made[pool.name] = pool_submission(deployment, pool, folder, python, scripts)
    return made


def submit(
    client: SlurmClient,
    folder: Folder,
    wanted: dict[str, Submission],
    told: Callable[[str, str], None] = lambda name, job: None,
) -> JobBook:
    """Submit all, or nothing: when Slurm refuses one, those before it are cancelled. The job ids are saved at
    once, so that `down` finds them whatever happens next.

    Raises SlurmError with the refused part's name and Slurm's own words. One that Slurm did not answer may come
    later, and nobody knows its id: then these words say how to find it.
    """
    book = JobBook(None, {})
    folder.logs("slurm", "any")  # Slurm does not make the directory that its own output goes to
    for name, submission in wanted.items():
        try:
            job = client.submit(submission)
        except SlurmError as error:
            _take_back(client, folder, book)
            what = "the head" if name == "head" else f'pool "{name}"'
            raise _refused(what, submission.name, error) from error
        book = msgspec.structs.replace(book, head=job) if name == "head" else book.noting(name, job)
        _save(client, folder, book)
        told(name, job)
    return book


def _refused(what: str, name: str, error: SlurmError) -> SlurmError:
    if isinstance(error, Unanswered):
        look = f"should `squeue --me --name={name}` show one more than before, cancel it with scancel"
        return SlurmError(f"nobody knows whether {what} was submitted ({error}): {look}")
    return SlurmError(f"{what} was refused: {error}")


def _save(client: SlurmClient, folder: Folder, book: JobBook) -> None:
    """Raises OSError; then all that was submitted is cancelled: `down` would not find it."""
    try:
        book.save(folder.path)
    except OSError:
        _take_back(client, folder, book)
        raise


def _take_back(client: SlurmClient, folder: Folder, book: JobBook) -> None:
    for job in book.jobs:
        with contextlib.suppress(SlurmError):
            client.cancel(job)
    with contextlib.suppress(OSError):  # a full disk: what stands there is cancelled
        JobBook(None, {}).save(folder.path)


def chain(client: SlurmClient, folder: Folder, deployment: Deployment, scripts: Path) -> int:
    """Submit what follows each task of the book, one job after another; returns how many.

    Raises SlurmError when one is refused; then all that was submitted is cancelled.
    """
    book, python = JobBook.load(folder.path), deployment.launcher.python or "python3"
    samples = replay(folder.path / "journal").samples  # of earlier lives of this deployment
    learned = Learned((sample.pool, sample.what, sample.seconds) for sample in samples)
    count = 0
    for pool in deployment.pool:
        delays = in_advance(deployment, pool, learned)
        for task in range(pool.first_tasks):
            before, follows = f"{book.pools[pool.name][0]}_{task}", []
            for link in range(deployment.walltime.chain):
                minutes = delays[-1 if link else task] if delays is not None else None
                made = partial(pool_submission, deployment, pool, folder.path, python, scripts, array=str(task))
                try:
                    before = f"{_follow(client, made, before, minutes)}_{task}"
                except SlurmError as error:
                    _take_back(client, folder, book)
                    name = pool_name(deployment, pool)
                    raise _refused(f"the successor of {pool.name}/{task}", name, error) from error
                follows.append(before)
                book = msgspec.structs.replace(book, chain={**book.chain, f"{pool.name}/{task}": follows})
                _save(client, folder, book)
                count += 1
    return count


def _follow(client: SlurmClient, made: Callable[..., Submission], job: str, minutes: int | None) -> str:
    """A Slurm that knows no minutes behind `after` (before 20.02) refuses them: then `job` has to end first."""
    try:
        return client.submit(made(dependency=following(job, minutes)))
    except SlurmError as error:
        # one that was not answered may have been taken, and its command line names the dependency
        if isinstance(error, Unanswered) or minutes is None or "dependency" not in str(error).lower():
            raise
        return client.submit(made(dependency=following(job, None)))


def following(job: str, minutes: int | None) -> str:
    """Dependency of a job's successor: it may start so many minutes after the job has started, and when it has
    ended, however soon that is.

    In this order: some versions of Slurm take the first "+" behind a job id for that id's, across a "?".
    """
    return f"afterany:{job}" if minutes is None else f"after:{job}+{minutes}?afterany:{job}"


def living(client: SlurmClient, folder: Folder) -> list[JobRecord]:
    """Jobs and array tasks that Slurm still holds. Raises SlurmError when Slurm cannot be asked."""
    jobs = JobBook.load(folder.path).jobs
    return [record for record in client.jobs(jobs) if record.state not in ENDED] if jobs else []


def cancel(client: SlurmClient, folder: Folder) -> None:
    """Cancel what is left. Raises SlurmError when Slurm cannot be asked."""
    for job in JobBook.load(folder.path).jobs:
        client.cancel(job)
