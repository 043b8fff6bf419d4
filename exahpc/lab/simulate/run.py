"""One simulation from beginning to end."""

from __future__ import annotations

import logging

from exahpc.deployment.spec import Deployment
from exahpc.lab.simulate.faults import Faults
from exahpc.lab.simulate.report import Report, report
from exahpc.lab.simulate.scenario import Scenario
from exahpc.lab.simulate.world import World


def simulate(deployment: Deployment, scenario: Scenario) -> Report:
    """The same deployment, scenario and seed give the same report. Raises ExahpcError for a recording that cannot
    be read."""
    logging.disable()  # what is decided stands in the report
    try:
        world = World(deployment, scenario)
        faults = Faults(world)
        world.run()
    finally:
        logging.disable(logging.NOTSET)
    return report(world, faults.notes)
