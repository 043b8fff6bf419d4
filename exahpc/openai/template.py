"""Chat templates in Hugging Face's conventions, sandboxed, with every failure of the template a 400.

The conventions (names, filters, whitespace) are those of transformers' `apply_chat_template`, so a template
renders the same text here and there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from exahpc.errors import DeploymentError, RequestError
from exahpc.openai.body import shortened
from exahpc.openai.request import Message


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own annotation)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own filter escapes HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    return made


class ChatTemplate:
    """A compiled template. Raises DeploymentError when `source` does not compile.

    specials: "bos_token", "eos_token", ... as the template may name them. fold_system: put a system message in
    front of the first user message, for templates without a system role.
    """

    def __init__(self, source: str, specials: Mapping[str, str], *, fold_system: bool = False) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as e:
            raise DeploymentError(f"the model's chat template does not compile: {e}: mend or remove it") from e
        self._specials = dict(specials)
        self._fold = fold_system

    def render(self, messages: Sequence[Message], created: int, options: Mapping[str, Any]) -> str:
        """The prompt text, up to where the assistant begins.

        created: Unix seconds that `strftime_now` shows (UTC), so that a request sent again gives the same
        prompt. options: the client's further variables. Raises RequestError (400) with the template's words.
        """
        given: dict[str, Any] = {
            **self._specials,
            "messages": [m.for_template() for m in (fold_system(messages) if self._fold else messages)],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            "strftime_now": datetime.fromtimestamp(created, UTC).strftime,
        }
        for name in options:
            if name in given or name in self._template.globals:
                raise RequestError(
                    f"chat_template_kwargs: {name!r} is set by the server: leave it out",
                    param="chat_template_kwargs",
                )
        try:
            return self._template.render({**options, **given})
        except Exception as e:  # a template is a program: whatever it raises is about these messages
            hint = "" if self._fold or all(m.role != "system" for m in messages) else _FOLD_HINT
            words = shortened(str(e)) or type(e).__name__
            raise RequestError(
                f"messages: the model's chat template refused them: {words}{hint}", param="messages"
            ) from e


_FOLD_HINT = " (no system role? put its text into the first user message, or serve with model.fold_system)"


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The same conversation without system messages: their text goes in front of the next user message.

    With no user message after it, a system message becomes a user message.
    """
    folded: list[Message] = []
    held: list[str] = []
    for message in messages:
        if message.role == "system":
            held.append(message.content)
        elif message.role == "user" and held:
            folded.append(Message("user", "\n\n".join([*held, message.content]), message.extra))
            held = []
        else:
            folded.append(message)
    if held:
        folded.append(Message("user", "\n\n".join(held)))
    return folded
