"""Plain prompts as requests. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from exahpc.batch.inputs.options import Template
from exahpc.batch.inputs.requests import validate
from exahpc.batch.lines import Row
from exahpc.batch.plan import KINDS
from exahpc.errors import BatchError, RequestError
from exahpc.openai.body import Kind, literal, printable
from exahpc.openai.messages import read_messages

_OURS = ("model", "messages", "prompt", "stream")
"""Fields that the template sets itself."""


class Maker:
    """Makes requests by one template. model: the served name; None: not known, the bodies have none."""

    def __init__(self, template: Template, model: str | None) -> None:
        """Raises BatchError when no request of this template can be run."""
        for name in _OURS:
            if name in template.body:
                raise BatchError(f"--body: {name!r} is set by exahpc: leave it out")
        if template.system is not None and template.kind == "completion":
            raise BatchError("--system: a completion has no system message: leave it out, or use --prompt-as chat")
        fields: dict[str, Any] = dict(template.body)
        if model is not None:
            fields["model"] = model
        if template.max_tokens is not None:
            fields["max_tokens"] = template.max_tokens
        rest = msgspec.json.encode(fields)[:-1]  # without its closing bracket
        self._head = rest + (b"," if fields else b"")
        self.kind: Kind = template.kind
        self.number = KINDS.index(self.kind)
        self.takes_ids = template.system is None
        self._system = b""
        if template.system is not None:
            self._system = b'{"role":"system","content":%b},' % literal(template.system)
        try:
            request = validate(self.kind, self.of_text("x"), model)
        except RequestError as error:
            raise BatchError(f"no prompt can be run with these options: {error.message}") from error
        self.limit = request.max_tokens or 0
        self._seed = request.seed

    def of_text(self, prompt: str) -> bytes:
        """The body for a text."""
        if self.kind == "completion":
            return b'%b"prompt":%b}' % (self._head, literal(prompt))
        return b'%b"messages":[%b{"role":"user","content":%b}]}' % (self._head, self._system, literal(prompt))

    def flaw(self, prompt: object) -> str | None:
        """Why this is no prompt."""
        if isinstance(prompt, str):
            return None if prompt else "the prompt is empty"
        if prompt is None:
            return "the prompt is missing"
        if not isinstance(prompt, list):
            return f"the prompt is {printable(prompt)}: neither text, nor token ids, nor messages"
        if not prompt:
            return "the prompt is empty"
        if isinstance(prompt[0], dict):
            return self._flaw_of_messages(prompt)
        return self._flaw_of_ids(prompt)

    def _flaw_of_messages(self, prompt: list[Any]) -> str | None:
        if self.kind == "completion":
            return "the prompt is a list of messages: use --prompt-as chat"
        try:
            read_messages(prompt)
        except RequestError as error:
            return error.message
        return None

    def _flaw_of_ids(self, prompt: list[Any]) -> str | None:
        for i, token in enumerate(prompt):
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                return f"item {i} of the prompt is {printable(token)}: token ids are integers from 0"
        if not self.takes_ids:
            return "the prompt is a list of token ids: there is no system message for those"
        return None

    def row(self, prompt: Any, row: int) -> Row:
        """The request for a prompt without a flaw: text, token ids (always a completion) or messages."""
        if isinstance(prompt, str):
            return Row(self.kind, name_of(row), self.of_text(prompt), self._seed)
        if isinstance(prompt[0], dict):
            inner = json.dumps(prompt).encode()[1:-1]  # as it is: it may hold lone surrogates
            body = b'%b"messages":[%b%b]}' % (self._head, self._system, inner)
            return Row("chat", name_of(row), body, self._seed)
        body = b'%b"prompt":%b}' % (self._head, msgspec.json.encode(prompt))
        return Row("completion", name_of(row), body, self._seed)


def name_of(row: int) -> str:
    """The custom_id of a plain prompt."""
    return f"row-{row}"
