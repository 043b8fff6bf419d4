"""Findings and gates: which of them keep a step of the tutorial closed."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.launch.doctor.finding import CHECKS, GATES, Finding, closes, open_until, ordered, reached
from exahpc.launch.doctor.submitted import joined

VERDICTS = ("ok", "warn", "fail", "skipped")
findings = st.lists(st.builds(Finding, st.sampled_from(list(CHECKS)), st.sampled_from(VERDICTS), st.just("seen")))


def all_ok() -> list[Finding]:
    return [Finding(name, "ok", "") for name in CHECKS]


def but(name: str, verdict: str) -> list[Finding]:
    return [msgspec.structs.replace(one, verdict=verdict) if one.check == name else one for one in all_ok()]


@given(findings)
def test_every_check_is_told_once_and_in_order(found: list[Finding]) -> None:
    told = ordered(found, "why")
    assert [one.check for one in told] == list(CHECKS)
    assert all(one.detail == "why" for one in told if one.check not in {seen.check for seen in found})


@given(findings)
def test_the_worst_of_what_was_found_is_told(found: list[Finding]) -> None:
    rank = {"skipped": 0, "ok": 1, "warn": 2, "fail": 3}
    for one in ordered(found, ""):
        seen = [rank[other.verdict] for other in found if other.check == one.check]
        assert rank[one.verdict] == max(seen, default=0)


@given(findings)
def test_a_gate_that_is_closed_keeps_all_later_ones_closed(found: list[Finding]) -> None:
    told = ordered(found, "")
    shut = [any(closes(one, gate) for one in told) for gate in GATES]
    assert shut == sorted(shut), "each finding closes a gate and all after it"
    last = open_until(told)
    assert shut.count(False) == (0 if last is None else GATES.index(last) + 1)


def test_when_all_is_well_production_is_open() -> None:
    assert open_until(all_ok()) == "production"


@pytest.mark.parametrize("name", CHECKS)
def test_whatever_fails_closes_production(name: str) -> None:
    assert open_until(but(name, "fail")) != "production"


@pytest.mark.parametrize("name", CHECKS)
def test_what_was_not_looked_at_closes_production(name: str) -> None:
    assert open_until(but(name, "skipped")) != "production"


def test_one_node_needs_no_other() -> None:
    several = ("mpi-across", "files-across", "clocks", "same-software", "fabric")
    alone = [one for one in all_ok() if one.check not in several]
    assert open_until(ordered(alone, "one node")) == "single-node"


def test_a_warning_is_let_pass_until_it_matters() -> None:
    assert open_until(but("imports", "warn")) == "few-nodes"
    assert open_until(but("slurm-topology", "warn")) == "production", "a site may have no switches"


def test_gates_are_reached_in_order() -> None:
    for earlier, later in itertools.combinations(GATES, 2):
        assert reached(later, earlier)
        assert not reached(earlier, later)
    assert not reached("production", None)


def test_the_login_node_knows_better_about_slurm_and_the_nodes_about_themselves() -> None:
    login = [Finding("slurm-version", "ok", "login"), Finding("model", "ok", "login")]
    nodes = [Finding("slurm-version", "fail", "node"), Finding("model", "fail", "node")]
    told = {one.check: one for one in joined(login, ordered(nodes, ""))}
    assert told["slurm-version"].detail == "login"
    assert told["model"].verdict == "fail", "the nodes must see the model too"
