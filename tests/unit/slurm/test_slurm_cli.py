"""The command-line client against Slurm commands that answer as sites have answered."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import msgspec
import pytest

from exahpc.errors import SlurmError
from exahpc.slurm import cli, process
from exahpc.slurm.api import JobRecord, RequeueDisabled, Submission, Unanswered
from exahpc.slurm.cli import CommandLine
from exahpc.slurm.process import Answer

from .fake_slurm import FakeSlurm, wide

SUBMISSION = Submission(
    name="exahpc-d-a", script="/s/replica.sbatch", arguments=("--folder", "/f"), flags=("--requeue",), array="0-3"
)


def states(client: CommandLine, job: str) -> list[tuple[str, str]]:
    return [(record.id, record.state) for record in client.jobs([job])]


# --- queries -----------------------------------------------------------------------------------------------


def test_a_record_holds_nodes_reason_and_restarts(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "--jobs=7", wide("7_0", "RUNNING", restarts=2, nodes="gpu[07-08],x1"))
    assert CommandLine().jobs(["7"]) == [JobRecord("7_0", "running", "RUNNING", "", ("gpu07", "gpu08", "x1"), 2)]


def test_a_running_job_tells_when_slurm_ends_it(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "--jobs=7", wide("7_0", "RUNNING", end="1795993565") + wide("7_1", "PENDING", end="90"))
    slurm.says("squeue", "--jobs=8", wide("8_0", "RUNNING", end="N/A") + wide("8_1", "COMPLETED", end="90"))
    assert [record.end for record in CommandLine().jobs(["7"])] == [1795993565.0, 0.0]
    assert [record.end for record in CommandLine().jobs(["8"])] == [0.0, 0.0]


def test_a_node_hangs_on_its_leaf_switch(slurm: FakeSlurm) -> None:
    leaves = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=x\n"
    spine = "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2],x Switches=leaf[1-2]\n"
    slurm.says("scontrol", "show topology", leaves + spine)
    assert CommandLine().topology() == {"n1": "leaf1", "n2": "leaf1", "x": "leaf2"}


def test_a_site_that_tells_no_topology_has_none(slurm: FakeSlurm) -> None:
    slurm.says("scontrol", "show topology", "No topology information available\n")
    assert CommandLine().topology() == {}


def test_reasons_with_blanks_stay_whole(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "", wide("7", "PENDING", reason="job requeued in held state"))
    assert CommandLine().jobs(["7"])[0].reason == "job requeued in held state"


def test_a_busy_controller_is_asked_once_more(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "", code=1, error="slurm_load_jobs error: Socket timed out on send/recv operation")
    slurm.says("squeue", "", wide("7_0", "RUNNING"))
    assert states(CommandLine(), "7") == [("7_0", "running")]


def test_a_failed_query_raises_and_tells_of_no_failed_job(slurm: FakeSlurm) -> None:
    for _ in range(2):
        slurm.says("squeue", "", code=1, error="slurm_load_jobs error: Socket timed out on send/recv operation")
    with pytest.raises(SlurmError, match="says nothing about the jobs"):
        CommandLine().jobs(["7"])


def test_a_squeue_without_the_wanted_flags_is_asked_in_plainer_ways(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "--Format", code=1, error="squeue: error: Invalid job format specification: RestartCnt")
    slurm.says("squeue", "--states=all", code=1, error="squeue: unrecognized option '--states=all'")
    slurm.says("squeue", "--array", code=1, error="squeue: unrecognized option '--array'")
    slurm.says("squeue", "--format", "7_[0,2-3%1]|PENDING||N/A|Resources\n7_1|RUNNING|n[1-2]|90|None\n")
    client = CommandLine()
    for _ in range(2):
        assert states(client, "7") == [
            ("7_0", "pending"),
            ("7_2", "pending"),
            ("7_3", "pending"),
            ("7_1", "running"),
        ]
    assert len(slurm.calls("squeue")) == 5  # the way that works is remembered


def test_a_job_that_slurm_does_not_know_is_lost(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "--jobs=9", code=1, error="slurm_load_jobs error: Invalid job id specified")
    slurm.says("squeue", "--jobs=7,8", wide("7_0", "RUNNING"))
    assert states(CommandLine(), "9") == [("9", "lost")]
    assert [(r.id, r.state) for r in CommandLine().jobs(["7", "8"])] == [("7_0", "running"), ("8", "lost")]


def test_preempted_and_lost_nodes_are_on_their_way_back(slurm: FakeSlurm) -> None:
    story = [("RUNNING", 0), ("PREEMPTED", 0), ("PENDING", 1), ("RUNNING", 1), ("COMPLETED", 1)]
    for raw, restarts in story:
        slurm.says("squeue", "--jobs=7", wide("7_0", raw, restarts=restarts))
    for raw, restarts in [("NODE_FAIL", 0), ("REQUEUED", 1)]:
        slurm.says("squeue", "--jobs=8", wide("8_0", raw, restarts=restarts))
    client = CommandLine()
    assert [states(client, "7")[0][1] for _ in story] == [
        "running",
        "requeued",
        "requeued",
        "running",
        "completed",
    ]
    assert [states(client, "8")[0][1] for _ in range(2)] == ["requeued", "requeued"]
    assert client.jobs(["8"])[0].restarts == 1


def test_a_job_that_may_not_be_requeued_does_not_come_back(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "", wide("7_0", "NODE_FAIL", requeue=0))
    assert states(CommandLine(), "7") == [("7_0", "failed")]


def test_a_job_that_stays_preempted_for_long_has_failed(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.says("squeue", "", wide("7_0", "PREEMPTED"))
    now = [0.0]
    monkeypatch.setattr(cli.time, "monotonic", lambda: now[0])
    client = CommandLine()
    assert states(client, "7") == [("7_0", "requeued")]
    now[0] = cli.RETURN_SECONDS + 1
    assert states(client, "7") == [("7_0", "failed")]


def test_a_state_of_a_newer_slurm_is_no_end(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "", wide("7_0", "EXPEDITING"))
    assert states(CommandLine(), "7") == [("7_0", "pending")]


def test_no_slurm_variable_of_ours_reaches_a_command(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    environment = process.environment()
    assert not {"SQUEUE_FORMAT", "SLURM_JOB_ID"} & environment.keys()
    assert environment["SLURM_CONF"] == "/etc/slurm.conf"


# --- requeue -----------------------------------------------------------------------------------------------


def test_one_array_task_is_requeued_by_its_array_id(slurm: FakeSlurm) -> None:
    CommandLine().requeue("1234_1")
    assert slurm.calls("scontrol") == [["scontrol", "requeue", "1234_1"]]


@pytest.mark.case("B41")
def test_a_whole_array_is_never_requeued(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "--jobs=1234", wide("1234_0", "RUNNING") + wide("1234_1", "RUNNING"))
    with pytest.raises(SlurmError, match="name the task"):
        CommandLine().requeue("1234")
    assert slurm.calls("scontrol") == []


def test_a_requeue_that_slurm_forbids_says_what_to_do(slurm: FakeSlurm) -> None:
    slurm.says("scontrol", "requeue", code=1, error="Requested operation is presently disabled for job 7")
    with pytest.raises(RequeueDisabled, match="requeue = false"):
        CommandLine().requeue("7_0")


def test_requeueing_what_waits_already_is_no_error(slurm: FakeSlurm) -> None:
    slurm.says("scontrol", "requeue", code=1, error="7_0: Job is pending execution")
    CommandLine().requeue("7_0")


def test_a_requeue_away_from_a_node_holds_waits_excludes_releases(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "", wide("7_0", "COMPLETING"))
    slurm.says("squeue", "", wide("7_0", "PENDING", restarts=1))
    slurm.says("scontrol", "show job 7_0", "JobId=7 ExcNodeList=n9 Features=(null)")
    CommandLine(poll=0).requeue("7_0", exclude="n1,n2")
    assert [call[1:] for call in slurm.calls("scontrol")] == [
        ["requeuehold", "7_0"],
        ["--oneliner", "show", "job", "7_0"],
        ["update", "JobId=7_0", "ExcNodeList=n9,n1,n2", "StartTime=now"],
        ["release", "7_0"],
    ]
    assert len(slurm.calls("squeue")) == 2


def test_a_job_is_released_even_when_it_cannot_be_kept_off_a_node(slurm: FakeSlurm) -> None:
    slurm.says("squeue", "", wide("7_0", "PENDING"))
    slurm.says("scontrol", "update", code=1, error="Invalid node name specified")
    with pytest.raises(SlurmError, match="cannot be kept off"):
        CommandLine(poll=0).requeue("7_0", exclude="nope")
    assert slurm.calls("scontrol")[-1] == ["scontrol", "release", "7_0"]


def test_a_requeued_job_is_hurried_once_it_is_surely_off_its_node(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.says("squeue", "", wide("7_0", "PENDING", restarts=1, reason="BeginTime"))
    now = [0.0]
    monkeypatch.setattr(cli.time, "monotonic", lambda: now[0])
    client = CommandLine()
    assert not client.hurry("7_0")
    client.jobs(["7"])
    assert not client.hurry("7_0")
    now[0] = cli.RELAUNCH_SECONDS
    assert client.hurry("7_0")
    assert slurm.calls("scontrol") == [["scontrol", "update", "JobId=7_0", "StartTime=now"]]


# --- submit and cancel -------------------------------------------------------------------------------------


def test_submit_calls_exactly_the_shown_command_line(slurm: FakeSlurm) -> None:
    slurm.says("sbatch", "", "55;cluster\n")
    assert CommandLine().submit(SUBMISSION) == "55"
    assert slurm.calls("sbatch") == [list(SUBMISSION.argv())]


def test_a_job_whose_confirmation_was_lost_is_not_submitted_twice(slurm: FakeSlurm) -> None:
    submission = msgspec.structs.replace(SUBMISSION, flags=(*SUBMISSION.flags, "--chdir=/d/my own"))
    slurm.says("squeue", "--name=exahpc-d-a", "40 /d/my own\n40 /d/my own\n")
    slurm.says("squeue", "--name=exahpc-d-a", "40 /d/my own\n41 /d/my own\n41 /d/my own\n42 /e\n")
    slurm.says("sbatch", "", code=1, error="sbatch: error: Batch job submission failed: Socket timed out")
    assert CommandLine().submit(submission) == "41"
    assert len(slurm.calls("sbatch")) == 1


def test_a_submission_that_got_lost_is_repeated(slurm: FakeSlurm) -> None:
    slurm.says("sbatch", "", code=1, error="sbatch: error: Batch job submission failed: Socket timed out")
    slurm.says("sbatch", "", "42\n")
    assert CommandLine().submit(SUBMISSION) == "42"


@pytest.mark.parametrize("taken", [True, False])
def test_a_submission_that_slurm_never_answered_is_looked_for_and_never_repeated(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    tries: list[object] = []

    def hang(argv: object) -> Answer:
        tries.append(argv)
        raise Unanswered("sbatch did not answer")

    monkeypatch.setattr(cli, "call", hang)
    slurm.says("squeue", "--name=exahpc-d-a", "40\n")
    slurm.says("squeue", "--name=exahpc-d-a", "40\n41\n" if taken else "40\n")
    if taken:
        assert CommandLine().submit(SUBMISSION) == "41"
    else:
        with pytest.raises(Unanswered):
            CommandLine().submit(SUBMISSION)
    assert len(tries) == 1


def test_a_controller_that_cannot_be_asked_afterwards_leaves_a_submission_unanswered(slurm: FakeSlurm) -> None:
    timeout = "Socket timed out on send/recv operation"
    slurm.says("squeue", "--name=exahpc-d-a", "40\n")
    slurm.says("squeue", "--name=exahpc-d-a", code=1, error=timeout)
    slurm.says("sbatch", "", code=1, error=timeout)
    with pytest.raises(Unanswered, match="may have been submitted"):
        CommandLine().submit(SUBMISSION)


def test_a_lost_confirmation_that_may_be_any_of_several_leaves_a_submission_unanswered(slurm: FakeSlurm) -> None:
    """One of them is an earlier submission that a controller got to much later: known to nobody else."""
    slurm.says("squeue", "--name=exahpc-d-a", "40\n")
    slurm.says("squeue", "--name=exahpc-d-a", "40\n41\n42\n")
    slurm.says("sbatch", "", code=1, error="Socket timed out on send/recv operation")
    with pytest.raises(Unanswered, match="41, 42"):
        CommandLine().submit(SUBMISSION)
    assert len(slurm.calls("sbatch")) == 1


def test_a_lost_confirmation_is_not_taken_for_that_of_another_task_of_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks that are submitted anew at the same time have the pool's name, all of them."""
    client, jobs = CommandLine(), set[str]()
    other = Thread(target=client.submit, args=(SUBMISSION,))

    def call(argv: tuple[str, ...]) -> Answer:
        if other.ident is None:  # the first: Slurm never hears of it
            other.start()
            other.join(0.5)
            return Answer(argv, 1, "", "Socket timed out")
        job = str(50 + len(jobs))
        jobs.add(job)
        return Answer(argv, 0, job, "")

    monkeypatch.setattr(cli, "call", call)
    monkeypatch.setattr(CommandLine, "named", lambda self, name, folder: set(jobs))
    monkeypatch.setattr(cli.time, "sleep", lambda seconds: None)
    mine = client.submit(SUBMISSION)
    other.join()
    assert (mine, jobs) == ("50", {"50", "51"})


def test_a_site_that_refuses_requeue_gets_the_job_without_it(
    slurm: FakeSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.says("sbatch", "--requeue", code=1, error="sbatch: error: --requeue is not allowed here")
    slurm.says("sbatch", "", "43\n")
    assert CommandLine().submit(SUBMISSION) == "43"
    assert "refuses --requeue" in caplog.text
    assert "--requeue" not in slurm.calls("sbatch")[-1]


def test_a_refused_submission_names_the_job_and_slurms_words(slurm: FakeSlurm) -> None:
    slurm.says("sbatch", "", code=1, error="sbatch: error: Invalid partition name specified\n")
    with pytest.raises(SlurmError, match=r"exahpc-d-a was not submitted.*Invalid partition"):
        CommandLine().submit(SUBMISSION)


def test_the_folder_of_the_jobs_output_exists_before_the_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.says("sbatch", "", "1\n")
    output = tmp_path / "logs" / "slurm" / "%x.out"
    CommandLine().submit(msgspec.structs.replace(SUBMISSION, flags=(f"--output={output}",)))
    assert output.parent.stat().st_mode & 0o777 == 0o700


def test_cancelling_what_is_over_is_no_error(slurm: FakeSlurm) -> None:
    slurm.says(
        "scancel", "7", code=1, error="scancel: error: Kill job error on job id 7: Invalid job id specified"
    )
    CommandLine().cancel("7")
    slurm.says("scancel", "8", code=1, error="scancel: error: Access/permission denied")
    with pytest.raises(SlurmError, match="permission denied"):
        CommandLine().cancel("8")


def test_a_signal_goes_to_the_batch_script(slurm: FakeSlurm) -> None:
    CommandLine().cancel("7_1", signal="USR1")
    assert slurm.calls("scancel") == [["scancel", "--batch", "--signal=USR1", "7_1"]]


def test_a_command_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmError, match="scancel is not on PATH"):
        CommandLine().cancel("7")
