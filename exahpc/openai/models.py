"""The answer of GET /v1/models and GET /v1/models/NAME, and what models are called."""

from __future__ import annotations

from collections.abc import Iterable

from exahpc.deployment.versions import BASE
from exahpc.openai.body import literal


def version_name(served: str, label: str) -> str:
    """How clients ask for one version of the model `served`."""
    return f"{served}@{label or BASE}"


def version_of(asked: str, served: str) -> str | None:
    """The label in a name that `version_name` may have made; None when it is no such name."""
    label = asked.removeprefix(f"{served}@")
    if not label or label == asked:
        return None
    return "" if label == BASE else label


def model_object(name: str, created: int) -> bytes:
    """One model as JSON. created: Unix seconds."""
    return b'{"id":%b,"object":"model","created":%d,"owned_by":"exahpc"}' % (literal(name), created)


def models_body(names: Iterable[str], created: int) -> bytes:
    """The list of models: the one that this deployment serves, also by its versions when there are several."""
    return b'{"object":"list","data":[%b]}' % b",".join(model_object(name, created) for name in names)
