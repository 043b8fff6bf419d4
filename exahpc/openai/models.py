"""The answer of GET /v1/models and GET /v1/models/NAME."""

from __future__ import annotations

from exahpc.openai.body import literal


def model_object(name: str, created: int) -> bytes:
    """One model as JSON. created: Unix seconds."""
    return b'{"id":%b,"object":"model","created":%d,"owned_by":"exahpc"}' % (literal(name), created)


def models_body(name: str, created: int) -> bytes:
    """The list of models: the one that this deployment serves."""
    return b'{"object":"list","data":[%b]}' % model_object(name, created)
