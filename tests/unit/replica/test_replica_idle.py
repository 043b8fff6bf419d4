"""Idle shares say what part of the working time a rank was not busy."""

from __future__ import annotations

import pytest

from exahpc.replica.idle import IdleShares


def test_a_share_is_what_a_rank_was_not_busy_of_the_active_time() -> None:
    idle = IdleShares(2)
    idle.report(0, 10.0, 10.0)
    idle.report(1, 10.0, 7.5)
    assert idle.shares() == [0.0, 0.25]


def test_old_reports_are_forgotten() -> None:
    idle = IdleShares(1)
    for second in range(1, 20):
        idle.report(0, float(second), 0.0 if second < 10 else float(second - 9))
    assert idle.shares() == [pytest.approx(0.0)]


def test_a_rank_that_told_nothing_is_not_called_idle() -> None:
    assert IdleShares(3).shares() == [0.0, 0.0, 0.0]


def test_time_without_work_changes_nothing() -> None:
    idle = IdleShares(1)
    idle.report(0, 4.0, 3.0)
    idle.report(0, 4.0, 3.0)
    assert idle.shares() == [0.25]


def test_reports_in_quick_succession_do_not_shorten_the_view() -> None:
    idle = IdleShares(1)
    for tenth in range(1, 200):
        idle.report(0, tenth / 10, 0.0 if tenth < 180 else (tenth - 179) / 10)
    assert 0.2 < idle.shares()[0] < 0.6


def test_a_report_that_ran_ahead_stays_within_bounds() -> None:
    idle = IdleShares(1)
    idle.report(0, 1.0, 1.02)
    assert idle.shares() == [0.0]
