"""One simulation from beginning to end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from exahpc.deployment.spec import Deployment
from exahpc.lab.simulate.faults import Faults
from exahpc.lab.simulate.report import Report, report
from exahpc.lab.simulate.scenario import Scenario, check_size
from exahpc.lab.simulate.world import World


@contextmanager
def quiet() -> Iterator[None]:
    """Without the lines that the product would log: what is decided stands in the report."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def simulate(deployment: Deployment, scenario: Scenario) -> Report:
    """The same deployment, scenario and seed give the same report. Raises DeploymentError for a recording that
    cannot be read, and for more requests than can be simulated."""
    check_size(scenario, deployment.wanted_replicas)
    with quiet():
        world = World(deployment, scenario)
        faults = Faults(world)
        world.run()
    return report(world, faults.notes)
