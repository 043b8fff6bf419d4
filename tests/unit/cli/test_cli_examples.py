"""Every command has help and an example, and each is run by a test: here, where no deployment is needed."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from exahpc.batch.compact import compact
from exahpc.cli import exits, main
from exahpc.cli.examples import EXAMPLES
from exahpc.cli.signals import Terminated
from exahpc.errors import ExahpcError
from exahpc.launch import pack as packing
from exahpc.launch import place
from exahpc.wire.folder import Folder
from tests.examples import COMMANDS, ELSEWHERE, LINES, ROOT, SHORTER, examples, runnable
from tests.tiny import make_model
from tests.unit.batch.batches import answer, begin, commit, error, line

LIVE = ROOT / "tests" / "e2e" / "test_e2e_examples.py"


class Site:
    """A home and a working directory, as the examples presume them. `path` is both."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._monkeypatch = path, monkeypatch
        shutil.copytree(ROOT / "jobs", path / "jobs")

    def laptop_model(self) -> None:
        make_model(self.path / ".cache" / "exahpc" / "models" / "smollm2", layers=2)

    def llama(self) -> None:
        make_model(self.path / "models" / "Llama-3.1-8B", layers=2)
        (self.path / "scratch" / "me").mkdir(parents=True)

    def environment(self) -> None:
        """The virtual environment that is packed: a small one of the same form."""
        (self.path / "scratch" / "me").mkdir(parents=True)
        packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        (self.path / "env" / packages / "matplotlib").mkdir(parents=True)
        (self.path / "env" / packages / "matplotlib" / "big.py").write_text("")
        (self.path / "env" / "pyvenv.cfg").write_text("")
        self._monkeypatch.setattr(packing, "pack", partial(packing.pack, prefix=self.path / "env"))

    def parts(self) -> None:
        """A batch of two rows that is done, one of them failed, and of which nobody has made one file."""
        parts, _ = begin(self.path, [line("r0"), line("r1")])
        commit(parts, [answer(0, "yes"), error(1, "too long")])
        parts.path.rename(self.path / "results.h5.parts")

    def results(self) -> None:
        self.parts()
        compact(self.path / "results.h5.parts", None)

    def submitted(self) -> None:
        """A deployment that is down, and a batch which waits for it."""
        laptop = (self.path / "jobs" / "laptop.toml").read_text()
        Folder.create(self.path / ".exahpc" / "laptop", laptop)
        words = "batch submit jobs/sample.jsonl --deployment laptop -o results.h5"
        assert CliRunner().invoke(main, words.split()).exit_code == 0

    def shell(self) -> None:
        """What completion is written to."""
        for folder in (".local/share/bash-completion/completions", ".config/fish/completions"):
            (self.path / folder).mkdir(parents=True)


Made = Callable[[Site], None]


def nothing(site: Site) -> None:
    """The deployments of the repository are enough."""


RUN: dict[str, tuple[Made, int]] = {
    "exahpc plan llama-3.1-70b --accelerator h100-80 --context 8192 --concurrency 5000": (nothing, 0),
    "exahpc plan jobs/many-nodes.toml --accelerator pvc-tile --nodes 64": (nothing, 0),
    "exahpc plan /models/Llama-3.1-8B --accelerator a100-40 --write jobs/mine.toml": (Site.llama, 0),
    "exahpc doctor": (nothing, 3),  # without a deployment it never says that one can be started
    "exahpc up jobs/laptop.toml --dry-run": (Site.laptop_model, 0),
    "exahpc batch check jobs/sample.jsonl": (nothing, 0),
    "exahpc batch compact results.h5.parts": (Site.parts, 0),
    "exahpc batch errors results.h5": (Site.results, 0),
    "exahpc batch cancel results.h5": (Site.submitted, 0),
    "exahpc model fetch smollm2": (Site.laptop_model, 0),  # it is there already; `make model` fetches it
    "exahpc model list": (nothing, 0),
    "exahpc model convert /models/Llama-3.1-8B /scratch/me/llama-int8 --int8": (Site.llama, 0),
    "exahpc model seal /models/Llama-3.1-8B": (Site.llama, 0),
    "exahpc pack -o /scratch/me/exahpc.tar.zst": (Site.environment, 0),
    "exahpc pack -o small.tar.gz --exclude '*/site-packages/matplotlib/*'": (Site.environment, 0),
    "exahpc completion bash > ~/.local/share/bash-completion/completions/exahpc": (Site.shell, 0),
    "exahpc completion zsh >> ~/.zshrc": (Site.shell, 0),
    "exahpc completion fish > ~/.config/fish/completions/exahpc.fish": (Site.shell, 0),
    "exahpc ladder jobs/four-nodes.toml --pool short --nodes 1,2,4 --rate 20 --simulate": (nothing, 0),
    "exahpc simulate jobs/many-nodes.toml": (nothing, 0),
}
"""Example -> what it names is made so, and its exit code."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("EXAHPC_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize("example", RUN)
def test_examples_that_need_no_deployment_end_as_they_should(example: str, site: Site) -> None:
    make, code = RUN[example]
    make(site)
    words = runnable(example, site.path)
    if ">" in words:  # redirected: the shell's part is the point
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "_EXAHPC_COMPLETE" in Path(words.split()[-1]).expanduser().read_text()
        return
    ended = CliRunner().invoke(main, shlex.split(words)[1:])
    assert ended.exit_code == code, ended.output
    assert ended.output.strip(), "it says something"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_and_an_example(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert examples(path, command), f"{path}: write an example into its help, or into exahpc/cli/examples.py"
    assert all(
        option.help for option in command.params if isinstance(option, click.Option) and not option.hidden
    ), "every option says what it does"


NO_JSON = {
    "exahpc key": "prints the key alone",
    "exahpc tunnel": "stays; prints its URL, again when it moves",
    "exahpc chat": "prints the answer; programs ask the endpoint",
    "exahpc logs": "prints lines of logs",
    "exahpc down": "prints nothing to standard output",
    "exahpc watch": "stays",
    "exahpc batch compact": "prints the file's path; `batch status --json` tells its counts",
    "exahpc batch export": "writes rows, as JSON lines by default",
    "exahpc batch submit": "prints the batch's id alone",
    "exahpc model convert": "prints the folder alone",
    "exahpc model fetch": "prints the folder alone",
    "exahpc model seal": "prints nothing to standard output",
    "exahpc completion": "prints a script",
    "exahpc rollout start": "prints the version in force; `rollout status --json` tells the rest",
    "exahpc rollout promote": "as start",
    "exahpc rollout abort": "as start",
    "exahpc rollout rollback": "as start",
}
"""Command -> why a script needs no JSON of it."""


def test_every_command_tells_what_it_found_as_json_or_has_a_reason_not_to() -> None:
    silent = {path for path, command in COMMANDS.items() if not any("--json" in o.opts for o in command.params)}
    assert silent == set(NO_JSON)


@pytest.mark.parametrize(
    ("example", "keys"),
    [
        ("exahpc up jobs/laptop.toml --dry-run", {"commands", "files"}),
        ("exahpc batch check jobs/sample.jsonl", {"files", "rows", "chats", "completions"}),
        ("exahpc batch cancel results.h5", {"batch", "state", "rows", "ok", "failed"}),
        ("exahpc simulate jobs/many-nodes.toml", {"scenario", "all"}),
    ],
)
def test_with_json_nothing_else_is_on_standard_output(example: str, keys: set[str], site: Site) -> None:
    make, code = RUN[example]
    make(site)
    ended = CliRunner().invoke(main, [*shlex.split(runnable(example, site.path))[1:], "--json"])
    assert ended.exit_code == code, ended.output
    assert keys <= json.loads(ended.stdout).keys()


def test_lists_are_json_too_when_they_are_empty(site: Site) -> None:
    assert json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout) == []
    (model,) = json.loads(CliRunner().invoke(main, ["model", "list", "--json"]).stdout)
    assert (model["name"], model["fetched"]) == ("smollm2", False)
    site.submitted()
    (one,) = json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout)
    assert (one["name"], one["state"], one["ready"], one["model"]) == ("laptop", "down", None, "smollm2")


def test_every_exit_code_of_ours_is_told_in_the_one_table() -> None:
    def below(error: type[ExahpcError]) -> Iterator[type[ExahpcError]]:
        yield error
        for inner in error.__subclasses__():
            yield from below(inner)

    assert {error.exit_code for error in below(ExahpcError)} | set(exits.MEANINGS) <= set(exits.COMMON)
    written = [
        node.args[0].value
        for file in (ROOT / "exahpc" / "cli").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "sys.exit"
        and isinstance(node.args[0], ast.Constant)
    ]
    assert set(written) <= {0, 1}, "name it in exahpc/cli/exits.py"


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_command_that_is_stopped_says_by_what(
    stop: type[BaseException], code: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise stop

    monkeypatch.setattr(place, "names", stopped)
    done = CliRunner().invoke(main, ["status"])
    assert (done.exit_code, done.stderr) == (code, "stopped\n")


def test_ctrl_c_is_the_good_end_of_what_goes_on_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(seconds: float) -> None:
        raise KeyboardInterrupt

    site.submitted()
    monkeypatch.setattr("time.sleep", stopped)
    assert CliRunner().invoke(main, ["logs", "laptop", "--follow"]).exit_code == 0
    assert CliRunner().invoke(main, ["status", "laptop", "--watch"]).exit_code == 0


@pytest.mark.parametrize("example", LINES)
def test_every_example_is_understood(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of commands, options and their values; files that an example names need not be there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    words = shlex.split(example.partition(" > ")[0].partition(" >> ")[0])[1:]
    command: click.Command = main
    context = click.Context(main, info_name="exahpc")
    while isinstance(command, click.Group):
        inner = command.get_command(context, words[0])
        assert inner is not None, words[0]
        command, words = inner, words[1:]
    command.make_context(command.name, words, parent=context)


def constants(file: Path) -> set[str]:
    """All string literals of a module."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_example_is_run_by_exactly_one_test() -> None:
    live = constants(LIVE)
    places = {example: [example in RUN, example in live, example in ELSEWHERE] for example in LINES}
    wrong = {example: sum(found) for example, found in places.items() if sum(found) != 1}
    assert not wrong, "add it to RUN here, run it in tests/e2e/test_e2e_examples.py, or explain it in ELSEWHERE"


def test_tables_name_examples_and_tests_that_there_are() -> None:
    assert {*RUN, *ELSEWHERE, *SHORTER} <= set(LINES)
    assert {one for one in constants(LIVE) if one.startswith("exahpc ")} <= set(LINES)
    for _, test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        functions = [
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text()))
            if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, test


def test_examples_belong_to_commands() -> None:
    assert {f"exahpc {path}" for path in EXAMPLES} <= set(COMMANDS)
