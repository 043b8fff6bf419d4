"""Which node hangs on which switch, from `scontrol show topology`. Pure."""

from __future__ import annotations

from exahpc.slurm.hostlist import expand


def leaves(text: str) -> dict[str, str]:
    """Node -> leaf switch. A site without switches (topology/none, block) has none."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        values = dict(word.partition("=")[::2] for word in line.split())
        if values.get("Level") == "0" and "SwitchName" in values:
            found.update(dict.fromkeys(expand(values.get("Nodes", "")), values["SwitchName"]))
    return found
