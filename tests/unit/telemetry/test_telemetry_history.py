"""Laws of the history: rows of three resolutions, files that are always whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.telemetry import store
from exahpc.telemetry.courses import (
    CLIENTS,
    MOST_GROUPS,
    REPLICAS,
    TIERS,
    Course,
    Courses,
    Row,
    Sample,
    Tier,
    columns,
)
from exahpc.telemetry.histogram import ERROR, Histogram
from exahpc.telemetry.store import Store, read
from tests.live import until

START = 1_764_460_800  # where spans of all tiers' files begin


def sample(tokens: int, running: float = 0.0, ttft: tuple[int, ...] = ()) -> Sample:
    histogram = Histogram()
    for value in ttft:
        histogram.add(value)
    return Sample({"running": running, "kv": -1.0}, {"tokens": tokens}, {"ttft": histogram} if ttft else {})


def row(time: int, tokens: float) -> tuple[Tier, str, Row]:
    return TIERS[0], "fleet", Row(time, 10.0, {"tokens": tokens})


# --- rows ---


@given(st.lists(st.tuples(st.floats(0.5, 40), st.integers(0, 100)), min_size=1, max_size=80), st.integers(1, 60))
def test_every_count_stands_in_exactly_one_row(looks: list[tuple[float, int]], step: int) -> None:
    course, now, tokens = Course(step), 0.0, 0
    rows = [course.look(sample(0), now)]
    for seconds, more in looks:
        now, tokens = now + seconds, tokens + more
        rows.append(course.look(sample(tokens), now))
    rows.append(course.look(sample(tokens), now + 2 * step))
    found = [one for one in rows if one is not None]
    assert sum(one.values["tokens"] for one in found) == tokens
    assert [one.time for one in found] == sorted({one.time for one in found})
    assert all(one.time % step == 0 for one in found)


def test_gauges_are_means_and_what_nobody_knows_is_left_out() -> None:
    course = Course(60)
    for at, running in ((0, 2.0), (20, 4.0), (40, 6.0)):
        assert course.look(sample(0, running), float(at)) is None
    found = course.look(sample(0, 100.0), 60.0)
    assert found is not None
    assert found.values == {"running": 4.0, "tokens": 0.0}


def test_percentiles_of_a_row_are_those_of_its_own_observations() -> None:
    course = Course(10)
    course.look(sample(0, ttft=(1_000,) * 50), 0.0)
    found = course.look(sample(0, ttft=(1_000,) * 50 + (2_000_000,) * 10), 10.0)
    assert found is not None
    assert found.values["ttft_p50"] == pytest.approx(2.0, rel=ERROR)
    empty = course.look(sample(0, ttft=(1_000,) * 50 + (2_000_000,) * 10), 20.0)
    assert empty is not None
    assert "ttft_p50" not in empty.values


def test_tiers_see_the_same_counts() -> None:
    courses, sums = Courses(), dict.fromkeys(TIERS, 0.0)
    for look in range(0, 1201, 10):
        for tier, _, found in courses.look({"fleet": sample(look)}, float(look)):
            sums[tier] += found.values["tokens"]
    assert set(sums.values()) == {1200.0}


def test_the_history_is_bounded() -> None:
    rows = sum((tier.keep + tier.span) // tier.step for tier in TIERS)
    assert rows * (12 + 4 * max(len(REPLICAS), len(CLIENTS))) * MOST_GROUPS < 200 * 2**20
    for tier in TIERS:
        assert tier.span % tier.step == tier.keep % tier.span % tier.step == 0


# --- files ---


def test_what_was_written_is_read_from_the_tier_that_reaches_back(tmp_path: Path) -> None:
    found = Store(tmp_path)
    found.add([row(START + 10, 5.0), row(START + 20, 6.0)], START + 30.0)
    found.add([(TIERS[1], "pool/a", Row(START, 60.0, {"ready": 3.0}))], START + 60.0)
    found.close(START + 61.0)
    series = read(tmp_path, "fleet", START, START + 3600)
    assert (series.step, list(series.rows["time"]), list(series.rows["tokens"])) == (
        10, [START + 10, START + 20], [5.0, 6.0],
    )  # fmt: skip
    assert np.isnan(series.rows["ready"]).all()
    assert list(read(tmp_path, "fleet", START + 11, START + 3600).rows["time"]) == [START + 20]
    assert read(tmp_path, "pool/a", START - 86_400, START + 100).rows["ready"] == [3.0]
    assert read(tmp_path, "pool/a", START, START + 100, step=60).step == 60
    assert store.groups(tmp_path) == ["fleet", "pool/a"]


def test_a_restarted_broker_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for life in range(3):
        found = Store(tmp_path)
        found.add([row(START + 100 * life, life)], START + 100.0 * life)
        found.close(START + 100.0 * life)
    assert list(read(tmp_path, "fleet", START, START + 3600).rows["tokens"]) == [0.0, 1.0, 2.0]


def test_a_reader_sees_whole_files_only_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Store(tmp_path)
    found.add([row(START, 1.0)], float(START))
    until("the first file", lambda: (tmp_path / "10s" / f"{START}.h5").exists())
    assert found._busy is not None
    found._busy.result(30)

    def torn(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(h5py.Group, "create_dataset", torn)
    found.add([row(START + 10, 2.0)], START + 61.0)
    found._busy.result(30)
    assert list(read(tmp_path, "fleet", START, START + 3600).rows["tokens"]) == [1.0]
    assert os.listdir(tmp_path / "10s") == [f"{START}.h5"]
    monkeypatch.undo()
    found.add([row(START + 20, 3.0)], START + 121.0)
    found.close(START + 130.0)
    assert list(read(tmp_path, "fleet", START, START + 3600).rows["tokens"]) == [1.0, 2.0, 3.0]


def test_a_file_that_is_none_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "10s").mkdir()
    (tmp_path / "10s" / f"{START}.h5").write_bytes(b"nonsense")
    found = Store(tmp_path)
    found.add([row(START, 1.0)], float(START))
    found.close(float(START))
    assert list(read(tmp_path, "fleet", START, START + 3600).rows["tokens"]) == [1.0]


def test_old_files_go(tmp_path: Path) -> None:
    found, tier = Store(tmp_path), TIERS[0]
    for hour in range(12):
        at = START + tier.span * hour
        found.add([row(at, float(hour))], float(at))
        assert found._busy is not None
        found._busy.result(30)
    kept = sorted(int(path.stem) for path in (tmp_path / "10s").iterdir())
    assert len(kept) <= tier.keep // tier.span + 1
    assert kept[-1] == START + 11 * tier.span
    found.close(START + 12.0 * tier.span)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    found = Store(tmp_path / "history")
    found.add([row(START, 1.0)], float(START))
    found.close(float(START))
    path = tmp_path / "history" / "10s" / f"{START}.h5"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_explains_itself_to_plain_h5py(tmp_path: Path) -> None:
    found = Store(tmp_path)
    found.add([row(START, 1.0)], float(START))
    found.close(float(START))
    with h5py.File(tmp_path / "10s" / f"{START}.h5") as file:
        assert file.attrs["step_seconds"] == 10
        assert file["fleet"].dtype.names == ("time", "seconds", *columns("fleet"))
