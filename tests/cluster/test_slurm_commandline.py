"""What only the command line shows: a controller that cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.errors import SlurmError
from exahpc.slurm.cli import CommandLine

from .conftest import DevCluster

pytestmark = pytest.mark.cluster


def test_a_query_that_fails_raises_and_reports_no_job(
    cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    text = Path(cluster.conf).read_text()
    conf.write_text(
        "\n".join("SlurmctldPort=1" if "SlurmctldPort" in line else line for line in text.splitlines())
    )
    conf.with_name("topology.conf").write_text(Path(cluster.conf).with_name("topology.conf").read_text())
    conf.with_name("gres.conf").write_text("")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(SlurmError, match="says nothing about the jobs"):
        CommandLine().jobs(["1"])
