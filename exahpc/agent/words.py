"""A faster way to the same ids, for byte-level vocabularies.

The library cuts a text into words by regular expressions and gives each word its ids, whatever stands beside it,
in about 2 us a word. Here Python's `re` cuts ASCII text, and what a word became is remembered: a sixth of the
time. In ASCII the classes that the expressions name (as "letter") are known one by one, so both cut alike. Long
texts go in blocks, which are remembered, too: the next turn of a conversation costs its last words only. Whatever
is not known to work so is the library's. tests/unit/agent/test_agent_words.py holds the two against each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import tokenizers

_MOST_WORDS = 2**16
"""Remembered at once, some 15 MB."""
_LONGEST_WORD = 64
"""Characters of a word that is remembered: longer ones hardly come twice."""
_BLOCK = 256
"""Least characters of a block."""
_MOST_BLOCKS = 2**13
"""Remembered at once, some 10 MB: of long texts, and whole short ones, as the system prompts of chats are."""
_JOINT = re.compile("[a-z] [a-z]")
"""A block may end behind the first of these: the expressions of _SPLIT end a word there and look no further."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""A ByteLevel pre-tokenizer's own."""
_LATER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPLIT = (_GPT2, _LATER % "", _LATER % "{1,3}")
"""The expressions of GPT-2, Qwen 2 and Llama 3, which most others took over."""
_USUAL = " [A-Za-z]++|"
"""In front of an expression of _SPLIT: what each of them makes of most words, found with fewer tries."""
_DIGITS = {True: r"\p{N}|[^\p{N}]+", False: r"\p{N}+|[^\p{N}]+"}
_NONE = r"\x80"  # no character of an ASCII text
_CLASSES = {
    "L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "Lt": _NONE, "Lm": _NONE, "Lo": _NONE, "M": _NONE, "Mn": _NONE,
    "N": "0-9", "Nd": "0-9", "P": r"!-#%-*,-/:;?@\[-\]_{}", "S": r"$+<=>\^`|~",
}  # fmt: skip
_DIFFERENT = re.compile(r"\$|(?<![\[\\])\^|\[\[|&&|\d\}\+|\(\?[a-hj-zA-Z<]|\\[PGKRXAZz]")
"""Where Oniguruma's expressions mean something else than Python's, or may."""
_PROBE = (
    "Ahem! It's 12:30, don't you'LL see?\n\n  def f(x):\n\treturn [x ** 2, 1e-3, 1234567]  # two\r\n"
    "a  b   c \x1c\x00\x7f{}~|<>=^_`$%  CamelCase snake_case http://x.y/z?a=b&c=d   \n \t end   "
)


class Words:
    """Made by `words`. Threads may share one."""

    def __init__(
        self, backend: tokenizers.Tokenizer, added: dict[str, int], cuts: list[re.Pattern[str]], *, blocks: bool
    ) -> None:
        """added: tokens that stand for themselves wherever their names appear; cuts: a text, the parts that it is
        cut into, their parts, ...; blocks: a text may be cut at a `_JOINT`."""
        names = sorted(added, key=len, reverse=True)  # of several the longest
        self._names = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None
        self._added = added
        self._cuts, self._in_blocks = cuts, blocks
        self._library = backend
        self._before, self._after = _around(backend)
        self._ids = _Memory(backend)
        self._blocks: dict[str, list[int]] = {}

    def encode(self, text: str, special: bool) -> list[int]:
        """special: with the tokens that stand around a text. Raises what the library raises."""
        ids = self._between(text)
        return [*self._before, *ids, *self._after] if special else ids

    def _between(self, text: str) -> list[int]:
        if self._names is None:
            return self._plain(text)
        plain, *rest = self._names.split(text)
        ids = self._plain(plain)
        for name, plain in zip(rest[::2], rest[1::2], strict=True):
            ids.append(self._added[name])
            ids += self._plain(plain)
        return ids

    def _plain(self, text: str) -> list[int]:
        """A text without added tokens."""
        if not self._in_blocks or len(text) < 2 * _BLOCK:
            return [*self._known(text)]
        ids: list[int] = []
        start = 0
        while (joint := _JOINT.search(text, start + _BLOCK)) is not None:
            end = joint.start() + 1
            ids += self._known(text[start:end])
            start = end
        return ids + self._known(text[start:])

    def _known(self, block: str) -> list[int]:
        """Not to be changed. What is long and did not go in blocks is one of a kind."""
        found = self._blocks.get(block)
        if found is None:
            found = self._block(block)
            if len(block) <= 4 * _BLOCK:
                if len(self._blocks) >= _MOST_BLOCKS:
                    self._blocks.clear()
                self._blocks[block] = found
        return found

    def _block(self, text: str) -> list[int]:
        if text.isascii():
            words = self._cuts[0].findall(text) if self._cuts else [text]
            for cut in self._cuts[1:]:
                words = [*chain.from_iterable(map(cut.findall, words))]
            if "".join(words) == text:  # what no expression matches is a word, too
                return [*chain.from_iterable(map(self._ids.__getitem__, words))]
        ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


class _Memory(dict[str, tuple[int, ...]]):
    """Ids of words, worked out when first met."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._tokenize: Callable[[str], list[Any]] = backend.model.tokenize
        self._letters = str.maketrans(_stand_ins())

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(token.id for token in self._tokenize(word.translate(self._letters)))
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids


def _stand_ins() -> dict[int, str]:
    """GPT-2's printable stand-ins for the ASCII characters that have none (`tokenizer` has all of them)."""
    return {byte: chr(256 + place) for place, byte in enumerate([*range(0x21), 0x7F])}


def words(backend: tokenizers.Tokenizer) -> Words | None:
    """None for a tokenizer that is not known to work in this way."""
    model = backend.model
    if not isinstance(model, tokenizers.models.BPE) or model.dropout:
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    kinds = [step["type"] for step in _steps(backend.normalizer, "normalizers")]
    if any(kind not in ("NFC", "NFD", "NFKC", "NFKD") for kind in kinds):
        return None  # these four change no ASCII
    added = backend.get_added_tokens_decoder()
    if any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added.values()):
        return None
    expressions = _expressions(backend.pre_tokenizer)
    cuts = [_translated(one) for one in expressions or ()]
    known = [cut for cut in cuts if cut is not None]
    if expressions is None or len(known) < len(cuts):
        return None
    blocks = set(expressions) <= {*_SPLIT, *_DIGITS.values()} and not any(" " in t.content for t in added.values())
    found = Words(backend, {token.content: number for number, token in added.items()}, known, blocks=blocks)
    alike = found.encode(_PROBE, special=True) == backend.encode(_PROBE).ids
    return found if alike else None


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts in front of and behind a text: they never depend on it."""
    plain, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    start = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    return whole[:start], whole[start + len(plain) :]


def _steps(part: Any, several: str) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer or pre-tokenizer, in order. several: what a sequence calls them."""
    if part is None:
        return
    rest = [json.loads(part.__getstate__())]
    while rest:
        first = rest.pop(0)
        if first["type"] == "Sequence":
            rest[:0] = first[several]
        else:
            yield first


def _expressions(pre_tokenizer: Any) -> list[str] | None:
    """What cuts a text, one after the other, or None."""
    *steps, last = [*_steps(pre_tokenizer, "pretokenizers")] or [{"type": ""}]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    found = []
    for step in steps:
        match step:
            case {"type": "Digits", "individual_digits": individual}:
                found.append(_DIGITS[individual])
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                found.append(pattern)
            case _:
                return None
    return [*found, _GPT2] if last.get("use_regex", True) else found


def _translated(pattern: str) -> re.Pattern[str] | None:
    """The same expression for ASCII texts, or None when that is not sure."""
    if _DIFFERENT.search(pattern):
        return None
    made, inside, place = _USUAL if pattern in _SPLIT else "", False, 0
    while place < len(pattern):
        mark = re.compile(r"\\p\{(\w+)\}|\\.|.", re.DOTALL).match(pattern, place)
        assert mark is not None
        one, name = mark[0], mark[1]
        place = mark.end()
        if name is not None:
            if name not in _CLASSES:
                return None
            one = _CLASSES[name] if inside else f"[{_CLASSES[name]}]"
        elif one in "[]":
            inside = one == "["
        elif one == "(" and not inside and pattern[place] != "?":
            one = "(?:"
        made += one
    try:
        return re.compile(made, re.ASCII)
    except re.error:
        return None
