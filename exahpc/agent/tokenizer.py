"""The model's tokenizer from its folder, on the `tokenizers` library alone (no torch, no model code).

Read: tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json, config.json, with the
meaning that transformers gives them (so `add_bos_token` in tokenizer_config.json counts for nothing where there
is a tokenizer.json, which says itself what stands around a text).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from exahpc.agent.words import words
from exahpc.errors import DeploymentError, RequestError
from exahpc.openai.body import shortened
from exahpc.openai.template import ChatTemplate
from exahpc.openai.text import BytesDecoder, Decoder, WindowDecoder

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
"""Texts come one by one: the library's threads would have nothing to share, and it complains about each fork."""
_CONTEXT = 5
"""Prompt tokens that a window decoder sees before the first new one."""


class Tokenizer:
    """Text to ids and back. template: None when the model has no chat template.

    eos_ids: tokens that end an answer; vocabulary: rows of the model's embedding, so ids are below it;
    longest_token: most bytes of text that one token stands for, or None when there is no bound.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: tuple[int, ...] = (),
        template: ChatTemplate | None = None,
        vocabulary: int | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.eos_ids = eos_ids
        self.template = template
        self.vocabulary = vocabulary or backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(token for token, what in added.items() if what.special)
        self._table = _ByteTable(backend, self._special) if _is_byte_level(backend) else None
        self._pieces: dict[int, bytes] = {}
        self._words = words(backend) if self._table is not None else None
        self.longest_token: int | None = None
        if self._table is not None and backend.normalizer is None:
            self.longest_token = _longest_token(backend)

    @staticmethod
    def load(folder: Path, *, fold_system: bool = False) -> Tokenizer:
        """Read a checkpoint's tokenizer. Raises DeploymentError that names the file."""
        config = _read_json(folder / "tokenizer_config.json")
        specials = {name: text for name in _SPECIALS if (text := _token_text(config.get(name))) is not None}
        backend = _backend(folder)
        named = {token.content for token in backend.get_added_tokens_decoder().values()}
        plain = [t for t in specials.values() if t not in named and backend.token_to_id(t) is not None]
        backend.add_special_tokens(plain)  # the configuration makes these words special
        source = _template(folder, config)
        return Tokenizer(
            backend,
            eos_ids=_eos_ids(folder, backend, specials),
            template=None if source is None else ChatTemplate(source, specials, fold_system=fold_system),
            vocabulary=_vocabulary(_read_json(folder / "config.json")),
        )

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of `text`; special: with the tokens that the tokenizer puts around a text (usually BOS).

        A chat template writes these itself, so its text is encoded without. Raises RequestError (400) when
        the tokenizer has no way to write the text.
        """
        try:
            if self._words is not None:
                return self._words.encode(text, special)
            # the library's `encode` also says where each token stands in the text, for a quarter more time
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
        except Exception as e:  # the library raises bare Exception, for instance for an unknown word without <unk>
            raise RequestError(f"the model's tokenizer cannot write this text: {shortened(str(e))}") from e
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text

    def piece(self, token: int) -> bytes:
        """What a token stands for by itself; a special one for its name, an unknown one for its number."""
        found = self._pieces.get(token)
        if found is None:
            text = self._backend.id_to_token(token)
            if text is None:
                found = b"token_id:%d" % token
            elif self._table is not None:
                found = _token_bytes(text)
            else:
                found = _sentencepiece_bytes(text)
            self._pieces[token] = found
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Text of `ids` with the names of special tokens, as a prompt would be written."""
        if self._table is not None:
            return b"".join(map(self.piece, ids)).decode("utf-8", "replace")
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def decoder(self, prompt: Sequence[int]) -> Decoder:
        """A fresh incremental decoder for an answer to `prompt`."""
        if self._table is not None:
            return BytesDecoder(self._table)
        context: list[int] = []
        for token in reversed(prompt[-_CONTEXT:]):
            if token in self._special:
                break  # text starts anew after a special token
            context.insert(0, token)
        return WindowDecoder(self.decode, context, self._special)


_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Whether the text of ids is the UTF-8 of their bytes, one after the other."""
    if backend.decoder is None:
        return False
    found = json.loads(backend.decoder.__getstate__())
    while found["type"] == "Sequence" and len(found["decoders"]) == 1:
        found = found["decoders"][0]
    return bool(found["type"] == "ByteLevel")


def _longest_token(backend: tokenizers.Tokenizer) -> int | None:
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None  # such a token swallows any amount of white space
    longest_added = max((len(token.content.encode()) for token in added), default=1)
    return max(longest_added, *map(len, backend.get_vocab(False)))  # one character of a token is one byte


class _ByteTable(dict[int, bytes]):
    """Bytes of each token, worked out when first met. Special and unknown tokens have none."""

    def __init__(self, backend: tokenizers.Tokenizer, silent: Container[int]) -> None:
        super().__init__()
        self._backend = backend
        self._silent = silent

    def __missing__(self, token: int) -> bytes:
        text = None if token in self._silent else self._backend.id_to_token(token)
        self[token] = made = b"" if text is None else _token_bytes(text)
        return made


def _token_bytes(text: str) -> bytes:
    """As the library's ByteLevel decoder: a token with any other character stands for itself (added tokens)."""
    try:
        return bytes(_BYTE_OF[c] for c in text)
    except KeyError:
        return text.encode()


def _sentencepiece_bytes(text: str) -> bytes:
    """In SentencePiece's vocabularies a space is U+2581, and a lone byte is written <0xHH>."""
    if re.fullmatch("<0x[0-9A-F]{2}>", text):
        return bytes.fromhex(text[3:5])
    return text.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, from `bytes_to_unicode` of its published encoder."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(other)}


_BYTE_OF = _byte_alphabet()


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise DeploymentError(f"{path}: cannot be read: {e}: mend the checkpoint") from e
    if not isinstance(found, dict):
        raise DeploymentError(f"{path}: no JSON object: mend the checkpoint")
    return found


def _token_text(value: Any) -> str | None:
    """A special token is a string, or an object that holds it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if path.exists():
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library's only kind
            raise DeploymentError(f"{path}: no tokenizer: {e}: mend the checkpoint") from e
    try:  # older checkpoints hold a SentencePiece model or vocabulary files: only transformers converts these
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except Exception as e:
        raise DeploymentError(
            f"{folder}: no tokenizer.json, and transformers cannot convert what is there: {e}: "
            "save the tokenizer with AutoTokenizer.save_pretrained"
        ) from e


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, else chat_template.json, else the configuration's (its "default" of several)."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):
        found = next((t.get("template") for t in found if t.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, specials: dict[str, str]) -> tuple[int, ...]:
    """The generation configuration's (else the model's), and the tokenizer's own."""
    found: Any = _read_json(folder / "generation_config.json").get("eos_token_id")
    if found is None:
        found = _read_json(folder / "config.json").get("eos_token_id")
    ids = {i for i in (found if isinstance(found, list) else [found]) if isinstance(i, int)}
    own = backend.token_to_id(specials["eos_token"]) if "eos_token" in specials else None
    return tuple(sorted(ids if own is None else ids | {own}))


def _vocabulary(config: dict[str, Any]) -> int | None:
    text = config.get("text_config")
    value = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return value if isinstance(value, int) else None
