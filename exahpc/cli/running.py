"""`batch run` and `batch retry-failed` from their options to their exit code."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from exahpc.batch import run as batches
from exahpc.batch.results import Summary
from exahpc.batch.run import Prepared, Question
from exahpc.cli import exits
from exahpc.cli.batch_view import BatchView, Ending, bar, ending
from exahpc.cli.common import notes, opened, slurm_client
from exahpc.cli.signals import Terminated, terminable
from exahpc.errors import BatchBusy, ExahpcError
from exahpc.lab.hire import Hire, deployment_for
from exahpc.launch import prepare, room
from exahpc.launch.asking import Watching, note_deployment
from exahpc.launch.hired import Hired, name_for
from exahpc.wire import messages as m


def tell(line: str) -> None:
    """A line for people."""
    notes.print(line, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class _Nodes:
    """waiting: tells what is waited for; over: to be called when no node is needed any more."""

    ask: Callable[[Question], m.BatchState | m.Refused]
    waiting: Callable[[], str]
    over: Callable[[], None]


@dataclass
class Runner:
    """What runs a batch: a deployment that is up (`name`), or one of its own (`hire`)."""

    output: Path
    name: str | None
    hire: Hire
    keep: bool
    started: float = field(default_factory=time.monotonic)
    summary: Summary | None = None
    batch: str = ""

    def __post_init__(self) -> None:
        """Raises what is wrong with the options, the deployment or the model, before any input is read."""
        if (self.name is None) == (not self.hire.wanted):
            raise click.UsageError(
                "who runs it? Give --deployment NAME, or, for nodes of its own, --model PATH and --nodes or --like"
            )
        self.hired: Hired | None = None
        self._beat: Callable[[], None] = lambda: None
        if self.name is not None:
            self.folder, self.deployment = opened(self.name)
            return
        self.deployment = deployment_for(self.hire, name_for(self.output.absolute()), keep=self.keep)
        prepare.check_stage(self.deployment)
        prepare.check_model(self.deployment)
        prepare.check_programs(self.deployment)
        room.check_arrays(self.deployment)
        self.hired = Hired(self.deployment, slurm_client(self.deployment), tell, sleep=self._sleep)
        self.folder = self.hired.folder

    def run(self, prepared: Prepared) -> None:
        """To the end, or as far as it comes; fills `summary`. Raises KeyboardInterrupt, ExahpcError."""
        self.batch, self._beat = prepared.plan.batch, prepared.beat
        try:
            if prepared.summary is not None:
                self._end_what_is_left()
                self.summary = prepared.summary
            elif prepared.resumed and batches.complete(prepared):
                tell("all rows are done: only the results file is missing")
                self._end_what_is_left()
                with bar(notes, "writing results") as progress:
                    self.summary = batches.finish(prepared, progress=progress)
            else:
                if prepared.resumed:
                    tell(f"going on with {self.batch}")
                note_deployment(prepared.parts, self.folder)
                with self._nodes() as nodes, BatchView(notes, nodes.waiting) as view:
                    self.summary = batches.drive(
                        prepared, nodes.ask, view.report, over=nodes.over, progress=view.writing
                    )
        finally:
            prepared.release()

    def _sleep(self, seconds: float) -> None:
        """While nodes end: others should know that this process lives."""
        time.sleep(seconds)
        self._beat()

    def _end_what_is_left(self) -> None:
        """Also of an earlier run that died before it could do so."""
        if self.hired is not None and not self.keep:
            self.hired.take_down()

    @contextmanager
    def _nodes(self) -> Iterator[_Nodes]:
        hired = self.hired
        if hired is None:
            watching = Watching(self.folder, time.monotonic, tell)
            yield _Nodes(watching.ask, lambda: watching.text, lambda: None)
            return
        try:
            hired.bring_up()
            yield _Nodes(hired.ask, lambda: hired.text, self._end_what_is_left)
        except BatchBusy:  # another run of this command goes on with it
            raise
        except BaseException:
            self._end_what_is_left()
            raise
        self._end_what_is_left()
        if not self.keep and self.summary is not None and not self.summary.failed:
            hired.purge()

    # --- how it ended ---

    @property
    def stays(self) -> bool:
        """Whether the deployment goes on with the rows when this process ends."""
        return self.hired is None or self.keep

    def interrupted(self) -> str:
        """How to go on."""
        if not self.stays:
            return "stopped, and its nodes are given back; the same command goes on with the rows that are missing"
        cancel = f"exahpc batch cancel {shlex.quote(str(self.output))}"
        return (
            f"stopped watching; the deployment goes on with the rows. The same command collects them; {cancel} "
            f"stops them"
        )

    def told(self, state: str, code: int, error: str = "") -> Ending:
        seconds = round(time.monotonic() - self.started, 3)
        shown = Ending(state, code, batch=self.batch, seconds=seconds, error=error)
        return shown if self.summary is None else _counted(shown, self.summary)


def _counted(shown: Ending, summary: Summary) -> Ending:
    return msgspec.structs.replace(
        shown,
        results=str(summary.path),
        rows=summary.total,
        ok=summary.ok,
        failed=summary.failed,
        skipped=summary.skipped,
        commonest_error=summary.commonest_error or "",
        node_hours=summary.node_hours,
    )


def run_to_the_end(
    runner: Callable[[], Runner],
    begin: Callable[[Runner], Prepared],
    *,
    as_json: bool,
    after: Callable[[Summary], Summary] = lambda summary: summary,
) -> int:
    """Do all of it and tell how it ended; returns the exit code.

    runner: checks the options; begin: validates the input; after: what is done with the results, at the end.
    Errors are raised after --json has told them.
    """
    found: Runner | None = None
    try:
        with terminable():
            found = runner()
            found.run(begin(found))
            assert found.summary is not None
            found.summary = after(found.summary)
    except KeyboardInterrupt as stopped:
        code = exits.TERMINATED if isinstance(stopped, Terminated) else exits.INTERRUPTED
        text = found.interrupted() if found is not None else "stopped before anything was begun"
        tell(text)
        _tell_json(found, "stopped", code, text, as_json)
        return code
    except ExahpcError as error:
        _tell_json(found, "failed", error.exit_code, str(error), as_json)
        raise
    assert found.summary is not None
    return tell_end(found.summary, found.told("finished", 0), as_json=as_json)


def tell_end(summary: Summary, shown: Ending, *, as_json: bool) -> int:
    """Of a batch that is finished; returns the exit code."""
    code = exits.of_counts(summary.ok, summary.failed)
    for line in ending(summary):
        tell(line)
    if as_json:
        shown = _counted(msgspec.structs.replace(shown, exit_code=code), summary)
        click.echo(msgspec.json.encode(shown).decode())
    else:
        click.echo(str(summary.path))
    return code


def _tell_json(found: Runner | None, state: str, code: int, error: str, as_json: bool) -> None:
    if as_json:
        shown = found.told(state, code, error) if found is not None else Ending(state, code, error=error)
        click.echo(msgspec.json.encode(shown).decode())
