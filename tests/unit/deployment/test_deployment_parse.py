"""The deployment file is read strictly, and every problem is told at once with key, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError

GOOD = """
name = "demo"
[model]
path = "/models/m"
[[pool]]
name = "a"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(DeploymentError) as caught:
        load(text, "x.toml")
    title, *lines = str(caught.value).split("\n  ")
    assert title == f"x.toml: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return lines


def only(text: str) -> str:
    (line,) = problems(text)
    return line


def test_the_smallest_file_has_all_defaults() -> None:
    found = load(GOOD)
    assert isinstance(found, Deployment)
    assert (found.name, found.served_name, found.wanted_replicas) == ("demo", "m", 1)
    assert (found.head.placement, found.head.bind) == ("job", "0.0.0.0")


def test_the_local_launcher_stays_on_this_machine_unless_told_otherwise() -> None:
    local = GOOD + '[launcher]\nkind = "local"\n'
    assert (load(local).head.placement, load(local).head.bind) == ("local", "127.0.0.1")
    assert load(local + '[head]\nbind = "0.0.0.0"\n').head.bind == "0.0.0.0"


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load(GOOD).name = "other"  # type: ignore[misc]


def test_all_problems_are_told_at_once() -> None:
    text = GOOD.replace('"demo"', '"two words"') + "replicas = 0\ntensor_parallel = true\n[head]\nport = 70000\n"
    told = problems(text)
    assert [line.split(" ")[0] for line in told] == [
        "pool[0].replicas",
        "pool[0].tensor_parallel",
        "head.port",
        "name",
    ]
    assert told[0] == "pool[0].replicas = 0: must be at least 1"
    assert told[1] == "pool[0].tensor_parallel = true: must be a whole number"


@pytest.mark.parametrize(
    ("extra", "path", "says"),
    [
        ("replicass = 2", "pool[0].replicass", 'did you mean "replicas"?'),
        ("[modle]", "modle", 'did you mean "model"?'),
        ("[limits]\nzzz = 1", "limits.zzz", "known keys here: attempts"),
        ("[slurm]\ngress = 'gpu:1'", "slurm.gress", 'did you mean "gres"?'),
        ("[pool.slurm]\nqoss = 'x'", "pool[0].slurm.qoss", 'did you mean "qos"?'),
    ],
)
def test_an_unknown_key_is_an_error_with_a_suggestion(extra: str, path: str, says: str) -> None:
    line = only(GOOD + extra)
    assert line.startswith(f"{path}: unknown key; ")
    assert says in line


@pytest.mark.parametrize("key", ["name", "model", "pool"])
def test_a_missing_key_is_named(key: str) -> None:
    whole: dict[str, Any] = {
        "name": 'name = "d"\n',
        "model": '[model]\npath = "/m"\n',
        "pool": '[[pool]]\nname = "a"\n',
    }
    text = "".join(value for name, value in whole.items() if name != key)
    assert only(text).startswith(f"{key} is missing: ")


def test_no_pool_at_all_is_an_error() -> None:
    assert only('name = "d"\npool = []\nmodel.path = "/m"').startswith("pool is missing: add at least one")


def test_broken_toml_names_the_line() -> None:
    with pytest.raises(DeploymentError, match=r"x\.toml: not valid TOML: .*line 2"):
        load('name = "a"\nmodel = = 3', "x.toml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GOOD + "[model.x]", "model.x: unknown key; known keys here: context, dtype, fold_system, name, path"),
        (GOOD.replace("[[pool]]", "[pool]"), "pool = "),
        (GOOD + "slurm = 3", "pool[0].slurm = 3: write it as a table: [pool[0].slurm]"),
        (GOOD.replace('"/models/m"', '"/m"\ndtype = "int8"'), 'model.dtype = "int8": must be one of "bfloat16"'),
        (GOOD.replace('"/models/m"', '"/m"\ncontext = 15'), "model.context = 15: must be at least 16"),
        (GOOD.replace('"/models/m"', '"/m"\ncontext = 2.5'), "model.context = 2.5: must be a whole number"),
        (GOOD.replace('"/models/m"', '" "'), 'model.path = " ": name the folder'),
        (GOOD.replace('"/models/m"', '"/m"\nname = "a b"'), 'model.name = "a b": use 1 to 200 visible'),
        (GOOD.replace('"demo"', '"../x"'), 'name = "../x": use 1 to 63 letters'),
        (GOOD.replace('"a"', '"a.b"'), 'pool[0].name = "a.b": use 1 to 63 letters'),
        (GOOD.replace('"a"', '"head"'), 'pool[0].name = "head": '),
        (GOOD + '[[pool]]\nname = "a"', 'pool[1].name = "a": pool[0] has that name'),
        (
            GOOD + "kv_tokens = 100",
            "pool[0].kv_tokens = 100: must hold one whole context: at least model.context = 2048",
        ),
        (
            GOOD + "nodes_per_replica = 2",
            "pool[0].nodes_per_replica = 2: tensor_parallel 1 x pipeline_parallel 1 = 1",
        ),
        (
            GOOD + "pipeline_parallel=2\nnodes_per_replica=2\nreplicas_per_task=2",
            "pool[0].replicas_per_task = 2: must be 1",
        ),
        (
            GOOD + "pipeline_parallel=3\ntensor_parallel=2\nnodes_per_replica=2",
            "pool[0].nodes_per_replica = 2: 3 ranks a node",
        ),
        (
            GOOD + '[launcher]\nkind="local"\n[head]\nplacement="job"',
            'head.placement = "job": with launcher.kind = "local"',
        ),
        (
            GOOD + '[launcher]\nkind="local"\ncommands="watch"',
            'launcher.commands = "watch": launcher.kind = "local" runs no command of Slurm',
        ),
        (
            GOOD + 'pipeline_parallel=2\nnodes_per_replica=2\n[launcher]\nkind="local"',
            "pool[0].nodes_per_replica = 2: launcher",
        ),
        (GOOD + "[pool.link]\ngroup = 4", "pool[0].link.group = 4: must be at least 8"),
        (GOOD + '[pool.link]\nvia = "pigeon"', 'pool[0].link.via = "pigeon": must be one of "device"'),
        (GOOD + '[pool.link]\nexact = ["a"]', 'pool[0].link.exact = ["a"]: must be a list of whole numbers'),
        (GOOD + "[pool.link]\nexact = [0]", "pool[0].link.exact = 0: pipeline_parallel = 1 has no links"),
        (
            GOOD + "pipeline_parallel=3\n[pool.link]\nexact = [0, 2]",
            "pool[0].link.exact = 2: pipeline_parallel = 3 has links 0 to 1",
        ),
        (GOOD + '[head]\nbind = "localhost"', 'head.bind = "localhost": must be an IP address'),
        (
            GOOD + "[pool.scaling]\nidle_seconds = 60.0",
            "pool[0].scaling.idle_seconds = 60.0: has no effect without pool[0].scaling.least: set that (0 to",
        ),
        (GOOD + "[head]\nport = -1", "head.port = -1: must be at least 0"),
        (GOOD + "[recovery]\nbeat_seconds = nan", "recovery.beat_seconds = NaN: must be at least 0.1"),
        (GOOD + "[recovery]\nbeat_seconds = 61", "recovery.beat_seconds = 61.0: must be at most 60"),
        (GOOD + "[limits]\nattempts = 0", "limits.attempts = 0: must be at least 1"),
        (GOOD + '[slurm]\ntime = "soon"', 'slurm.time = "soon": write minutes'),
        (GOOD + '[slurm]\nmemory = "lots"', 'slurm.memory = "lots": write megabytes'),
        (GOOD + '[slurm]\nswitches = "0"', 'slurm.switches = "0": write "1"'),
        (GOOD + '[slurm]\npartition = ""', 'slurm.partition = "": must not be empty'),
        (GOOD + '[slurm]\naccount = "a\\nb"', 'slurm.account = "a\\nb": must not be empty or hold control'),
        (GOOD + '[slurm]\nextra = ["mem=3"]', 'slurm.extra = "mem=3": each entry is one sbatch flag'),
        (GOOD + '[slurm]\nextra = ["--array=0-3"]', 'slurm.extra = "--array=0-3": exahpc sets this flag itself'),
        (GOOD + '[slurm]\nextra = ["-N4"]', 'slurm.extra = "-N4": exahpc sets this flag itself'),
        (GOOD + "[slurm]\nmodules = 'gcc'", 'slurm.modules = "gcc": must be a list of strings'),
        (GOOD + '[slurm]\ngres = "gpu:4"\ngpus_per_node = "4"', 'slurm.gres = "gpu:4": gres and gpus_per_node'),
        (
            GOOD + '[pool.slurm]\ngres = "gpu:4"\n[slurm]\ngpus_per_node = "4"',
            'pool[0].slurm.gres = "gpu:4": gres and',
        ),
    ],
)
def test_each_mistake_names_key_value_and_remedy(text: str, line: str) -> None:
    assert any(found.startswith(line) for found in problems(text)), problems(text)


@pytest.mark.parametrize("time", ["90", "12:30", "01:30:00", "2-12", "2-12:30", "1-00:00:00", "UNLIMITED"])
def test_slurms_own_ways_to_write_a_walltime_pass(time: str) -> None:
    assert load(GOOD + f'[slurm]\ntime = "{time}"').slurm.time == time


def test_a_pool_may_leave_its_last_task_partly_filled() -> None:
    pool = load(GOOD + "replicas = 5\nreplicas_per_task = 2").pool[0]
    assert pool.tasks == 3
    assert [list(pool.slots_of_task(task)) for task in range(3)] == [[0, 1], [2, 3], [4]]
