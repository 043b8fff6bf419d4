"""How a batch stands: from the broker that runs it, from its results file, or from what is committed on disk."""

from __future__ import annotations

from pathlib import Path

from exahpc.batch import commits, usage
from exahpc.batch.intervals import count
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.results import Results
from exahpc.errors import BatchError, LinkError
from exahpc.launch.asking import about_batch, noted_deployment
from exahpc.wire.folder import Folder
from exahpc.wire.messages import BatchQuery, BatchState, BatchStatus


def known(output: Path) -> tuple[BatchPlan, Folder | None]:
    """(plan, the deployment that ran it last). Raises BatchError when no batch was begun for this output, or all
    of it is done."""
    parts = Parts.of(output)
    plan = parts.plan()
    if plan is None:
        if output.is_file():
            raise BatchError(f"the batch that made {output} is finished: nothing of it runs any more")
        raise BatchError(f"no batch was begun for {output}: start it with `exahpc batch run INPUT -o {output}`")
    return plan, noted_deployment(parts)


def of_output(output: Path, folder: Folder | None) -> BatchStatus:
    """folder: of the deployment to ask, None for the one that ran it last. Raises BatchError."""
    if output.is_file():
        return _of_results(output)
    plan, noted = known(output)
    asked = folder or noted
    if asked is not None:
        try:
            answer = about_batch(asked, BatchQuery(plan.batch))
        except LinkError:
            pass  # it may be down: its batch is on disk
        else:
            if isinstance(answer, BatchState):
                return answer.status
    return _of_disk(Parts.of(output), plan)


def _of_results(output: Path) -> BatchStatus:
    results = Results(output)
    try:
        found, batch = results.summary(), results.batch
    finally:
        results.close()
    return BatchStatus(
        batch,
        str(Parts.of(output).path),
        found.total,
        found.ok,
        found.failed,
        0,
        "finished",
        skipped=found.skipped,
        node_hours=found.node_hours,
    )


def _of_disk(parts: Parts, plan: BatchPlan) -> BatchStatus:
    ok, failed = 0, plan.bad
    for _, _, event in commits.read(parts.commits):
        if isinstance(event, commits.Commit):
            ok += count(event.rows)
            failed += count(event.bad)
    return BatchStatus(
        plan.batch,
        str(parts.path),
        plan.rows,
        ok,
        failed,
        0,
        "stopped",
        "no broker has it now: the command that began it goes on with it",
        skipped=plan.bad,
        node_hours=usage.node_hours(parts),
    )
