"""The bodies of requests: random prompts of wanted lengths, or those of a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from exahpc.errors import DeploymentError
from exahpc.lab.bench.wish import Wish

_MOST_PROMPTS = 100_000
"""Of a file: further ones are not read."""
_WORDS = (
    "a of in to on at by is it he she was had his her the and for but not you all can one out day get has him how",
    "man new now old see two way who boy did its let put say too use from with that this they have been said each",
    "which their time will about many then them write would like these long make thing look more could come",
    "number sound most people over know water than call first may down side work back year live take place little",
)
"""Short common words: each of them is about one token of most vocabularies."""


class Source:
    """Bodies without end. Each of `of` processes gives every one of them its own: `number` counts from 0.

    Two runs with the same seed ask the same. Raises DeploymentError when the file of prompts cannot be used.
    """

    def __init__(self, wish: Wish, number: int = 0, of: int = 1) -> None:
        self._wish = wish
        self._dice = random.Random(f"{wish.seed} {number}")
        self._prompts = prompts(Path(wish.file)) if wish.file else []
        self._next, self._step = number, of
        self._words = " ".join(_WORDS).split()
        target = wish.target
        self._fixed: dict[str, Any] = {"model": target.model, "temperature": 0}
        if target.ignore_eos:
            self._fixed["ignore_eos"] = True
        if wish.stream:
            self._fixed |= {"stream": True, "stream_options": {"include_usage": True}}

    def body(self) -> bytes:
        """The next request."""
        wish = self._wish
        body = self._fixed | {"max_tokens": wish.new.at(self._dice.random() or 0.5)}
        if self._prompts:
            prompt = self._prompts[self._next % len(self._prompts)]
            self._next += self._step
        else:
            prompt = self._random(wish.prompt.at(self._dice.random() or 0.5))
        if wish.chat:
            body["messages"] = prompt if _is_chat(prompt) else [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return msgspec.json.encode(body)

    def _random(self, length: int) -> str | list[int]:
        vocabulary = self._wish.target.vocabulary
        if vocabulary and not self._wish.chat:
            return [int(self._dice.random() * vocabulary) for _ in range(length)]
        return " ".join(self._dice.choices(self._words, k=length))


def prompts(path: Path) -> list[Any]:
    """Of a text file, one a line, or of JSON lines with "prompt" or "messages", or in OpenAI batch form.

    Raises DeploymentError that names the line.
    """
    try:
        with path.open(encoding="utf-8") as file:
            found = list(islice(_lines(file, str(path)), _MOST_PROMPTS))
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or error
        raise DeploymentError(f"--file {path} cannot be read: {told}") from None
    if not found:
        raise DeploymentError(f"--file {path} holds no prompt: write one a line")
    return found


def check_form(found: list[Any], chat: bool, path: str) -> None:
    """Raises DeploymentError when chats are to be sent as plain prompts, or token ids as chats."""
    for number, prompt in enumerate(found, 1):
        if _is_chat(prompt) and not chat:
            raise DeploymentError(f"--file {path}: prompt {number} has messages: they need --chat")
        if chat and not (_is_chat(prompt) or isinstance(prompt, str)):
            raise DeploymentError(f"--file {path}: prompt {number} is neither text nor messages: leave out --chat")


def _lines(file: Any, name: str) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if not text.lstrip().startswith("{"):
            yield text
            continue
        try:
            found = json.loads(text)
        except ValueError as error:
            raise DeploymentError(f"--file {name} line {number}: begins like JSON, but is none: {error}") from None
        body = found.get("body", found)
        prompt = body.get("messages", body.get("prompt")) if isinstance(body, dict) else None
        if not prompt or not isinstance(prompt, str | list):
            raise DeploymentError(f'--file {name} line {number}: holds neither "prompt" nor "messages"')
        yield prompt


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list) and isinstance(prompt[0], dict)
