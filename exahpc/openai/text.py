"""Token ids to text, one token at a time: whole characters only, never past a stop string.

A `TextStream` is a function of the ids pushed so far and nothing else: however they are split over pushes,
frames, replicas or agents, the same text comes out. That is what makes a request resumable from its ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 8
"""Tokens after which a character that is still incomplete is a wrong one (UTF-8 takes at most 4)."""

_utf8 = codecs.getincrementaldecoder("utf-8")


def breaks(pending: bytes, piece: bytes) -> bool:
    """Whether the incomplete character `pending` turns out to be none when `piece` follows."""
    if not pending or not piece:
        return False
    try:
        _utf8().decode(pending + piece[:1])
    except UnicodeDecodeError:
        return True
    return False


class Decoder(Protocol):
    """Ids in, text that later ids cannot change out."""

    @property
    def settled(self) -> bool:
        """Whether all text of the tokens so far is out."""
        ...

    def push(self, ids: Sequence[int]) -> str: ...

    def apart(self, token: int) -> int:
        """How much of the text that `push` of this one token would give stands before the token's own: U+FFFD
        for characters that it leaves incomplete."""
        ...

    def finish(self) -> str:
        """What was held back: U+FFFD for an incomplete character. Nothing may be pushed afterwards."""
        ...


class BytesDecoder:
    """For byte-level vocabularies: each token is a fixed run of bytes, the text is their UTF-8.

    table: the bytes of every token; empty for special and unknown ones.
    """

    __slots__ = ("_decoder", "_table", "settled")

    def __init__(self, table: Mapping[int, bytes]) -> None:
        self._table = table
        self._decoder: codecs.IncrementalDecoder | None = None  # as long as all text is ASCII
        self.settled = True

    def push(self, ids: Sequence[int]) -> str:
        piece = self._table[ids[0]] if len(ids) == 1 else b"".join(map(self._table.__getitem__, ids))
        if self.settled and piece.isascii():  # most are: a tenth of the time
            return piece.decode("ascii")
        if self._decoder is None:
            self._decoder = _utf8("replace")
        text = self._decoder.decode(piece)
        self.settled = not self._pending()
        return text

    def _pending(self) -> bytes:
        """Of a character that is not complete."""
        return b"" if self._decoder is None else self._decoder.getstate()[0]

    def apart(self, token: int) -> int:
        return int(breaks(self._pending(), self._table[token]))

    def finish(self) -> str:
        return "" if self._decoder is None else self._decoder.decode(b"", True)


class WindowDecoder:
    """For all other vocabularies: compare the texts of a few recent tokens with and without the new one.

    decode: ids to text; context: the last few ids of the prompt, so that a first word keeps its space;
    silent: special tokens, which have no text.
    """

    __slots__ = ("_decode", "_ids", "_known", "_read", "_silent")

    def __init__(
        self, decode: Callable[[list[int]], str], context: Sequence[int], silent: Container[int] = ()
    ) -> None:
        self._decode = decode
        self._silent = silent
        self._ids = list(context)
        self._read = len(self._ids)  # ids[:read] are out; they stay as context for the next ones
        self._known = decode(self._ids)

    @property
    def settled(self) -> bool:
        return self._read == len(self._ids)

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(self._push, ids))

    def _push(self, token: int) -> str:
        if token in self._silent:
            return ""
        self._ids.append(token)
        return self._advance(hold=len(self._ids) - self._read < _LONGEST_CHARACTER)

    def apart(self, token: int) -> int:
        if self.settled or token in self._silent:
            return 0
        held, text = self._decode(self._ids), self._decode([*self._ids, token])
        if text.endswith(REPLACEMENT) or not text.startswith(held):
            return 0
        return max(0, len(held) - len(self._known))

    def finish(self) -> str:
        return self._advance(hold=False)

    def _advance(self, *, hold: bool) -> str:
        text = self._decode(self._ids)
        if hold and (len(text) <= len(self._known) or text.endswith(REPLACEMENT)):
            return ""
        new = text[len(self._known) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._known = self._decode(self._ids)
        return new


class TextStream:
    """The text of one choice. `stopped` turns true when a stop string is complete.

    The text ends before the stop string that is complete first; of several complete at the same character,
    before the longest. What could be the beginning of a stop string is held back until it is decided.
    """

    __slots__ = ("_begin", "_decoder", "_held", "_longest", "_stops", "stopped")

    def __init__(self, decoder: Decoder, stops: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stops = tuple(stops)
        if stops:
            self._longest = max(map(len, stops))
            self._begin = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.stopped = False

    @property
    def settled(self) -> bool:
        """Whether all text of the tokens so far is out: nothing is held back."""
        return not self._held and self._decoder.settled

    def start(self, token: int) -> int:
        """Where the text of this token, if it comes next, begins: characters after all that is certain by now."""
        return len(self._held) + self._decoder.apart(token)

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain after these ids; those after a stop string change nothing."""
        if not self._stops:
            return self._decoder.push(ids)
        parts = []
        for token in ids:
            if self.stopped:
                break
            parts.append(self._match(self._decoder.push((token,))))
        return "".join(parts)

    def finish(self) -> str:
        """The rest of the text, when no more ids come. Nothing may be pushed afterwards."""
        if self.stopped:
            return ""
        rest = self._decoder.finish()
        if not self._stops:
            return rest
        text = self._match(rest)
        held, self._held = self._held, ""
        return text + held

    def _match(self, new: str) -> str:
        if not new:
            return ""
        text = self._held + new
        end = self._first_stop(text)
        if end is not None:
            self.stopped = True
            self._held = ""
            return text[:end]
        keep = self._undecided(text)
        self._held = text[keep:]
        return text[:keep]

    def _first_stop(self, text: str) -> int | None:
        """Where the text is cut: the start of the stop string that is complete first."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = (start + len(stop), start)
        return best[1] if best else None

    def _undecided(self, text: str) -> int:
        """Start of the longest end of `text` that begins a stop string; len(text) when there is none."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._begin:
                tail = text[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return start
        return len(text)
