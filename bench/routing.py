"""What one decision of the entry's router costs, beside one that looks at every replica; and what affinity saves.

    python bench/routing.py [--rounds 5] [--decisions 20000] [--smoke]

A decision is pick + take + give_back of one request, in a fleet that is at 70 % of its sequences and stays there.
Sides: `exahpc`, a fleet of one pool; `all policies`, the same router with two versions and shares, short, long and
common pools, an own node, replicas on probation and prompts with marks; `linear scan`, the least loaded of all
replicas, found by looking at each. CPU time of this process. Sizes and sides are interleaved, and each round turns
their order round. About two minutes. Writes bench/results/routing.json.
"""

from __future__ import annotations

import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import cycle
from typing import Any

import click
import common

from exahpc.deployment.policy import Routing
from exahpc.entry.affinity import Marks, marks_of
from exahpc.entry.fleet import Replica
from exahpc.entry.ledger import Record
from exahpc.entry.routing import Router
from exahpc.wire.messages import AgentRoute, FleetTable, Length, Route, Share

OURS, ALL, RIVAL = "exahpc", "all policies", "linear scan"
SIZES = (12, 384, 3072)
PER_TASK, CAPACITY, LOAD = 12, 16, 0.7
LENGTHS: tuple[Length, ...] = ("any", "short", "long")


class Linear:
    """The rival: no lists to keep, every decision looks at every replica."""

    def __init__(self, router: Router) -> None:
        self._replicas = [r for agent in router.agents.values() for r in agent.replicas.values()]

    def pick(self, ask: Record, now: float) -> Replica | None:
        takers = (r for r in self._replicas if r.sequences < r.capacity)
        return min(takers, key=lambda r: r.tokens, default=None)

    def take(self, replica: Replica, sequences: int, tokens: int) -> None:
        replica.sequences += sequences
        replica.tokens += tokens

    def give_back(self, replica: Replica, sequences: int, tokens: int) -> None:
        replica.sequences -= sequences
        replica.tokens -= tokens


def fleet(size: int, dice: random.Random, *, plain: bool) -> Router:
    """A router that knows `size` replicas on tasks of twelve, all up."""
    agents = []
    for task in range(size // PER_TASK):
        slots = range(task * PER_TASK, (task + 1) * PER_TASK)
        routes = [Route(slot, 1, CAPACITY, probe=not plain and slot % 20 == 7) for slot in slots]
        if plain:
            agents.append(AgentRoute("a", task, 1, "x", routes))
        else:
            version = "v2" if task % 7 == 3 else ""
            agents.append(AgentRoute("a", task, 1, "x", routes, f"node{task}", version, LENGTHS[task % 3]))
    router = Router(lambda n: int(dice.random() * n), Routing(), "" if plain else "node0")
    shares = [] if plain else [Share("", 0.9), Share("v2", 0.1)]
    router.update(FleetTable(1, 1, agents, shares), 0.0)
    for agent in router.agents.values():
        router.link(agent, True)
    return router


def requests(count: int, dice: random.Random, *, plain: bool) -> list[Record]:
    """Of 100 to 1,000 tokens; with all policies every tenth is long, and prompts are of 64 conversations."""
    texts = [dice.randbytes(4096) for _ in range(64)]
    made = []
    for number in range(count):
        tokens = dice.randrange(100, 1000) * (1 if plain or number % 10 else 20)
        marks = () if plain else marks_of(memoryview(dice.choice(texts)))
        made.append(request(tokens, marks))
    return made


def request(tokens: int, marks: Marks) -> Record:
    return Record("r", "chat", b"", stream=True, seed=1, created=1, choices=1, prompt=0, new=tokens, prefix=marks)


def decide(router: Router | Linear, size: int, asks: list[Record], decisions: int) -> dict[str, float]:
    """Microseconds a decision, and the most requests on one replica in the end."""
    running: list[tuple[Replica, int]] = []
    stream = cycle(asks)
    for _ in range(int(size * CAPACITY * LOAD)):
        ask = next(stream)
        if (found := router.pick(ask, 0.0)) is not None:
            router.take(found, 1, ask.tokens)
            running.append((found, ask.tokens))
    count = len(running)
    victims = random.Random(2).choices(range(count), k=decisions)
    begin = time.process_time()
    for victim in victims:
        ask = next(stream)
        router.give_back(running[victim][0], 1, running[victim][1])
        found = router.pick(ask, 0.0)
        assert found is not None
        router.take(found, 1, ask.tokens)
        running[victim] = found, ask.tokens
    seconds = time.process_time() - begin
    loads = list(Counter(replica for replica, _ in running).values())
    return {"microseconds": seconds / decisions * 1e6, "most_on_one_replica": max(loads)}


def sides(size: int, seed: int) -> dict[str, Callable[[int], dict[str, float]]]:
    """What can be measured at this size."""

    def ours(decisions: int) -> dict[str, float]:
        dice = random.Random(seed)
        return decide(fleet(size, dice, plain=True), size, requests(1000, dice, plain=True), decisions)

    def policies(decisions: int) -> dict[str, float]:
        dice = random.Random(seed)
        return decide(fleet(size, dice, plain=False), size, requests(1000, dice, plain=False), decisions)

    def linear(decisions: int) -> dict[str, float]:
        dice = random.Random(seed)
        router = Linear(fleet(size, dice, plain=True))
        return decide(router, size, requests(1000, dice, plain=True), max(200, min(decisions, 600_000 // size)))

    return {OURS: ours, ALL: policies, RIVAL: linear}


def conversations(seed: int, *, affine: bool, turns: int = 20_000) -> dict[str, float]:
    """2,000 conversations that come back with one more turn, on 384 replicas whose emulated caches hold the last
    128 kB of prompts. Returns the share of prompt bytes that were cached, and the most requests on one replica."""
    dice = random.Random(seed)
    router = fleet(384, dice, plain=True)
    caches: dict[Replica, OrderedDict[int, None]] = {}
    texts = [dice.randbytes(1024) for _ in range(2000)]
    running: list[tuple[Replica, int]] = []
    hit = asked = most = 0
    for _ in range(turns):
        number = dice.randrange(len(texts))
        text = texts[number] = (texts[number] + dice.randbytes(512))[:8192]
        tokens = len(text) // 4 + 128
        marks = marks_of(memoryview(text)) if affine else ()
        replica = router.pick(request(tokens, marks), 0.0)
        assert replica is not None
        router.take(replica, 1, tokens)
        running.append((replica, tokens))
        most = max(most, replica.sequences)
        cache, known = caches.setdefault(replica, OrderedDict()), True
        for end in range(512, len(text) + 1, 512):
            block = hash(text[:end])
            known = known and block in cache
            hit += 512 if known else 0
            cache[block] = None
            cache.move_to_end(block)
        asked += len(text)
        while len(cache) > 256:
            cache.popitem(last=False)
        if len(running) > 800:
            done, tokens = running.pop(dice.randrange(len(running)))
            router.give_back(done, 1, tokens)
    return {"cached_share": hit / asked, "most_on_one_replica": most}


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--decisions", default=20_000, show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(rounds: int, decisions: int, smoke: bool) -> None:
    """What a decision of the entry's router costs."""
    runs: list[dict[str, Any]] = []
    for number in range(rounds):
        todo = [(size, side, run) for size in SIZES for side, run in sides(size, number).items()]
        for size, side, run in todo if number % 2 == 0 else todo[::-1]:
            runs.append({"side": side, "case": f"{size} replicas", "round": number, **run(decisions)})
        for side, affine in ((OURS, True), ("without affinity", False)):
            found = conversations(number, affine=affine, turns=2000 if smoke else 20_000)
            runs.append({"side": side, "case": "conversations", "round": number, **found})
    comparison: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        case = f"{size} replicas"
        row = {side: common.median(runs, side, case, "microseconds") for side in (OURS, ALL, RIVAL)}
        comparison[case] = {"number": "microseconds", **row, "ratio": round(row[OURS] / row[RIVAL], 4)}
    row = {side: common.median(runs, side, "conversations", "cached_share") for side in (OURS, "without affinity")}
    ratio = round(row[OURS] / row["without affinity"], 2)
    comparison["conversations"] = {"number": "cached share", **row, "ratio": ratio}
    if smoke:
        common.show("routing", comparison)
        return
    common.write(
        "routing",
        what="one decision of the entry's router: pick, take and give back, in CPU time",
        runs=runs,
        comparison=comparison,
        packages=common.versions("msgspec"),
        notes=(
            "Microseconds: less is better. Cached share: more is better.",
            "`all policies`: versions with shares, length classes, own node, probation, prefix affinity at once.",
            "`linear scan`: the least loaded of all replicas, found by looking at each.",
            "`conversations`: 2,000 of them, each turn 512 bytes longer, on 384 replicas with emulated prefix "
            "caches; `most_on_one_replica` in the runs tells that affinity does not unbalance the fleet.",
        ),
    )


if __name__ == "__main__":
    main()
