"""The broker's hand on Slurm: a few threads, so that the loop never waits, nor a question for a slow deed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, assert_never

import msgspec

from exahpc.batch.space import refusal
from exahpc.broker.recovery import Act
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, SlurmError
from exahpc.slurm import scripts
from exahpc.slurm.api import ENDED, JobRecord, SlurmClient, Submission
from exahpc.slurm.jobbook import JobBook
from exahpc.slurm.submission import pool_name, pool_submission
from exahpc.wire.folder import Folder

T = TypeVar("T")
_log = logging.getLogger(__name__)
DEEDS = 4  # at once: a requeue off a dying node takes up to a minute
MOST_NOTED = 64  # jobs in the book before those that are over are dropped from it


class Cluster:
    """All methods raise SlurmError when Slurm refuses or cannot be asked."""

    def __init__(self, deployment: Deployment, folder: Folder, connect: Callable[[], SlurmClient]) -> None:
        """connect: chooses a client; called on the thread at first use, since looking for one takes a while."""
        self._deployment, self._folder, self._connect = deployment, folder, connect
        self._client: SlurmClient | None = None
        self._lock = threading.Lock()  # of the choice of a client and of the job book
        self._unnoted: list[tuple[str, str]] = []
        self._questions = ThreadPoolExecutor(1, thread_name_prefix="slurm-query")
        self._deeds = ThreadPoolExecutor(DEEDS, thread_name_prefix="slurm")

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[SlurmClient], T]) -> T:
        def call() -> T:
            try:
                with self._lock:
                    client = self._client = self._client or self._connect()
                return work(client)
            except OSError as error:  # of the deployment's folder, where the job book and wishes lie
                raise SlurmError(str(refusal(error, self._folder.path, "then it is tried again"))) from error

        return await asyncio.get_running_loop().run_in_executor(threads, call)

    async def book(self) -> JobBook:
        """What was submitted."""
        return await asyncio.get_running_loop().run_in_executor(self._questions, JobBook.load, self._folder.path)

    async def topology(self) -> dict[str, str]:
        """Node -> leaf switch."""
        return await self._run(self._questions, lambda client: client.topology())

    async def query(
        self, arrays: Iterable[str] = (), *, search: bool = False
    ) -> tuple[dict[str, list[str]], dict[str, JobRecord]]:
        """(arrays of each pool by the job book, records by id). arrays: to be asked about, and kept there; search:
        look also for jobs that a broker submitted and had no time to note."""

        def work(client: SlurmClient) -> tuple[dict[str, list[str]], dict[str, JobRecord]]:
            for pool in self._deployment.pool if search else ():
                found = sorted(client.named(pool_name(self._deployment, pool), str(self._folder.path)), key=int)
                self._note(*((pool.name, array) for array in found))
            if self._unnoted:
                self._note()
            book = JobBook.load(self._folder.path)
            pools, living = book.pools, set(arrays)
            ids = list(dict.fromkeys([*(job for jobs in pools.values() for job in jobs), *arrays]))
            records = client.jobs(ids) if ids else []
            living |= {record.array for record in records if record.state not in ENDED}
            self._forget({job for jobs in pools.values() for job in jobs} - living)
            for record in records:
                if record.state == "requeued" and record.reason == "BeginTime":
                    with contextlib.suppress(SlurmError):  # then Slurm's own wait of minutes stands
                        client.hurry(record.id)
            return pools, {record.id: record for record in records}

        return await self._run(self._questions, work)

    async def perform(self, act: Act) -> str:
        """Do it; returns the id under which the task lives afterwards."""

        def work(client: SlurmClient) -> str:
            match act.kind:
                case "requeue":
                    client.requeue(act.job, exclude=",".join(act.exclude) or None)
                    return act.job
                case "cancel":
                    client.cancel(act.job)
                    return act.job
                case "resubmit":
                    return self._resubmit(client, act)
                case _:
                    assert_never(act.kind)

        return await self._run(self._deeds, work)

    def _resubmit(self, client: SlurmClient, act: Act) -> str:
        name, _, task = act.key.rpartition("/")
        deployment = self._deployment
        submission = pool_submission(
            deployment,
            deployment.pool_named(name),
            self._folder.path,
            deployment.launcher.python or "python3",
            scripts.directory(),
            array=task,
        )
        array = client.submit(avoiding(submission, act.exclude))
        self._note((name, array))
        return f"{array}_{task}"

    def _note(self, *arrays: tuple[str, str]) -> None:
        """`down` cancels what stands in the job book: (pool, array). What it cannot take for now is noted by a
        later query: the jobs are there in any case."""
        with self._lock:
            self._unnoted += arrays
            try:
                book = noted = JobBook.load(self._folder.path)
                for pool, array in self._unnoted:
                    noted = noted.noting(pool, array)
                if noted is not book:
                    noted.save(self._folder.path)
            except (DeploymentError, OSError) as error:
                _log.error("jobs %s are noted later: %s", self._unnoted, error)
            else:
                self._unnoted.clear()

    def _forget(self, over: set[str]) -> None:
        """Arrays that are over leave the book: with successors they would grow without end."""
        with self._lock:
            book = JobBook.load(self._folder.path)
            if len(book.jobs) > MOST_NOTED and (kept := book.without(over)) != book:
                with contextlib.suppress(OSError):  # looked at again with the next query
                    kept.save(self._folder.path)

    async def adopt(self, pool: str, array: str) -> None:
        """An agent runs in an array that nobody noted: its submitter died in between."""
        await self._run(self._deeds, lambda client: self._note((pool, array)))

    async def cancel_pools(self) -> None:
        """Cancel every array of every pool, pending tasks included."""

        def work(client: SlurmClient) -> None:
            with self._lock:
                unnoted = [array for _, array in self._unnoted]
            book = JobBook.load(self._folder.path)
            for job in dict.fromkeys([*unnoted, *book.jobs]):
                if job != book.head:
                    client.cancel(job)

        await self._run(self._deeds, work)


def avoiding(submission: Submission, nodes: tuple[str, ...]) -> Submission:
    """The same submission, kept off these nodes too: sbatch takes the last --exclude only, so they are joined."""
    if not nodes:
        return submission
    flag = "--exclude="
    earlier = [value.removeprefix(flag) for value in submission.flags if value.startswith(flag)]
    others = tuple(value for value in submission.flags if not value.startswith(flag))
    return msgspec.structs.replace(submission, flags=(*others, flag + ",".join([*earlier, *nodes])))
