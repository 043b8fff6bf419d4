"""Known failures of serving systems; for each there is a test with its input. `pytest -m case` runs them all."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]

CASES = {
    "B01": "a batch hangs when a custom_id is used twice",
    "B04": "a line that is JSON but no object takes the batch down",
    "B05": "malformed lines are accepted blindly, or fail the batch before any row",
    "B07": "a byte order mark or Windows line ends spoil a file",
    "B08": "one line of invalid UTF-8 stops the reader",
    "B11": "a failed row is counted as answered",
    "B12": "a batch of which every row failed is reported as completed",
    "B13": "one prompt that is too long aborts the batch",
    "B15": "an empty prompt or max_tokens = 0 kills the engine",
    "B17": "after a very long prompt the server stays broken",
    "B18": "wrong text past 1024 tokens",
    "B19": "prompts of different lengths in one batch change each other's text",
    "B21": "tensor-parallel ranks that are fed different inputs",
    "B22": "devices that a launcher made visible are numbered wrongly",
    "B23": "streams hold U+FFFD where a character spans tokens",
    "B25": "a stop string that spans tokens leaks, or text is lost",
    "B26": "only the first of several stop strings works",
    "B28": "a stream that was cut ends like a complete one",
    "B29": "after an error a stream stays open",
    "B30": "a client that left is still answered",
    "B32": "what a chat template refuses is an internal error",
    "B34": "a seed gives another text on another replica",
    "B36": "a replica that does not answer makes all requests wait",
    "B41": "requeueing one task requeues the whole array",
    "B50": "an exception on one rank leaves the others waiting for ever",
    "B53": "a broken pyslurm kills the interpreter",
    "B54": "a killed writer leaves results that nobody can read",
    "B56": "NUL and lone surrogates cannot be stored",
}


def marked() -> dict[str, list[str]]:
    """Case -> tests that carry `@pytest.mark.case` with it (also on one of their parameters)."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for decorator in node.decorator_list:
                    for case in cases_in(decorator):
                        found[case].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def cases_in(decorator: ast.expr) -> list[str]:
    return [
        ast.literal_eval(argument)
        for call in ast.walk(decorator)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.case"
        for argument in call.args
    ]


def test_every_case_has_a_test() -> None:
    found = marked()
    assert [case for case in CASES if case not in found] == []
    assert set(found) <= set(CASES), "a marker names a case that is not listed here"
