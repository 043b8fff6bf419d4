"""A rollout by the broker as a process: the folder, the messages, and a restart in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

from exahpc.wire import messages as m
from tests.unit.broker.test_broker_main_live import ALL, TOML, until, world

NEW = TOML + "[limits]\nmax_tokens_default = 9\n"


def test_the_folder_is_told_first_and_a_new_broker_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            entry, a0, a1 = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            refused = await w.ask(m.RolloutStart("v2"))
            assert refused == m.Refused('deployment has no version "v2"; there are: none')
            w.folder.add_version("other", NEW.replace("replicas = 4", "replicas = 6"))
            refused = await w.ask(m.RolloutStart("other"))
            assert "pool[0].replicas = 6: it is 4" in refused.reason

            w.folder.add_version("v2", NEW)
            found = await w.ask(m.RolloutStart("v2"))
            assert (found.current, found.phase) == ("", "canary")
            await until(lambda: a0.of(m.SwitchVersion), "the canary is told")
            assert a0.of(m.SwitchVersion)[0].version == "v2"
            assert (w.folder.assigned("a", 0), w.folder.assigned("a", 1)) == ("v2", "")
            assert not a1.of(m.SwitchVersion)
            shares = [m.Share("", 1.0), m.Share("v2", 0.0)]
            await until(lambda: entry.tables[-1].shares == shares, "the canary gets no traffic yet")
            assert isinstance(await w.ask(m.RolloutStart("v2")), m.Refused)

            assert w.process is not None
            w.process.kill()
            w.process.wait()
            w.start()
            await w.head(2)
            await until(lambda: a0.epoch == 2, "the agents are back")
            found = await w.ask(m.RolloutQuery())
            assert (found.phase, [v.tasks for v in found.versions]) == ("canary", [1, 1])
            seen = len(a0.of(m.SwitchVersion))
            await until(lambda: len(a0.of(m.SwitchVersion)) > seen, "who did not obey is told again")

            found = await w.ask(m.RolloutCommand("abort"))
            assert found.phase == "reverting"
            await until(lambda: w.folder.assigned("a", 0) == "", "the canary loads the old version again")
            await until(lambda: entry.tables[-1].shares == [], "one version, no shares")
            found = await w.ask(m.RolloutQuery())
            assert (found.phase, found.story) == ("reverted", "aborted by command")
            assert isinstance(await w.ask(m.RolloutCommand("rollback")), m.Refused)

    asyncio.run(story())
