"""A text stream is a function of its ids: whole characters only, cut before the first complete stop string."""

from __future__ import annotations

import functools
import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from exahpc.agent.tokenizer import Tokenizer
from exahpc.openai.text import REPLACEMENT, BytesDecoder, TextStream, WindowDecoder
from tests.tiny import make_tokenizer


@functools.cache
def byte_level() -> Tokenizer:
    """256 single bytes (ids are an alphabet's order, not byte values) and five special tokens."""
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder))
        return Tokenizer.load(Path(folder))


@functools.cache
def byte_fallback() -> Tokenizer:
    """A SentencePiece-like vocabulary: words with a leading space, single bytes for the rest."""
    words = ["▁hello", "▁world", "lo", "▁", "a", "b", "你", "<", "/", "ans", ">"]
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend)


@functools.cache
def trained() -> Tokenizer:
    """Byte-level merges that begin and end inside characters, and added words that are no byte tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["你好 👩‍👩‍👧 é 你们 hello world привет " * 20, "👩 👨 👧 你 好 们 ê è"], trainer)
    backend.add_tokens(["<think>", "é!", "日本", " x"])
    return Tokenizer(backend)


def spell(text: str) -> list[int]:
    return byte_level().encode(text, special=False)


ids_of = {"bytes": st.integers(0, 262), "fallback": st.integers(0, 14 + 256)}
tokenizer_of = {"bytes": byte_level, "fallback": byte_fallback}
texts = st.text(st.sampled_from("ab<é你👩\u200d\n"), max_size=24)
stops = st.lists(st.text(st.sampled_from("ab<é你"), min_size=1, max_size=4), max_size=4)


def one_by_one(text: str, stops: list[str]) -> str:
    """The law of stop strings, the slow way: after each character, the longest stop that ends here."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def pieces_of(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))) | {0, len(ids)})
    return [ids[a:b] for a, b in itertools.pairwise(cuts)]


@given(st.data(), texts, stops)
def test_any_split_of_ids_gives_the_text_cut_at_the_first_stop(
    data: st.DataObject, text: str, stops: list[str]
) -> None:
    stream = TextStream(byte_level().decoder([]), stops)
    out = "".join(stream.push(piece) for piece in pieces_of(data, spell(text))) + stream.finish()
    assert out == one_by_one(text, stops)
    assert stream.stopped == any(stop in text for stop in stops)


@given(st.data(), st.sampled_from(["bytes", "fallback"]), stops)
def test_any_split_of_any_ids_gives_the_same_text(data: st.DataObject, kind: str, stops: list[str]) -> None:
    ids = data.draw(st.lists(ids_of[kind], max_size=30))
    tokenizer = tokenizer_of[kind]()
    whole = TextStream(tokenizer.decoder([]), stops)
    expected = whole.push(ids) + whole.finish()
    split = TextStream(tokenizer.decoder([]), stops)
    assert "".join(split.push(piece) for piece in pieces_of(data, ids)) + split.finish() == expected
    assert split.stopped == whole.stopped
    assert not any(stop in expected for stop in stops)


@given(st.lists(st.integers(0, 262), max_size=30))
def test_byte_level_streams_equal_the_librarys_decode(ids: list[int]) -> None:
    stream = TextStream(byte_level().decoder([]))
    assert stream.push(ids) + stream.finish() == byte_level().decode(ids)


@given(st.lists(st.integers(0, 430), max_size=30))
def test_merged_and_added_tokens_stream_as_the_librarys_decode(ids: list[int]) -> None:
    stream = TextStream(trained().decoder([]))
    assert "".join(stream.push([i]) for i in ids) + stream.finish() == trained().decode(ids)


@given(st.lists(st.integers(3, 13), max_size=20))
def test_word_vocabularies_stream_as_the_librarys_decode(ids: list[int]) -> None:
    stream = TextStream(byte_fallback().decoder([]))
    assert stream.push(ids) + stream.finish() == byte_fallback().decode(ids)


@given(texts)
def test_characters_spelt_in_fallback_bytes_come_out_whole(text: str) -> None:
    tokenizer = byte_fallback()
    ids = [14 + byte for byte in text.encode()]
    stream = TextStream(tokenizer.decoder([]))
    deltas = [stream.push([i]) for i in ids]
    assert "".join(deltas) + stream.finish() == text
    assert not any(REPLACEMENT in delta for delta in deltas)


@given(texts, stops, st.integers(0, 80))
def test_a_stream_goes_on_from_its_ids_anywhere_without_loss_or_repetition(
    text: str, stops: list[str], at: int
) -> None:
    ids = spell(text)
    before = TextStream(byte_level().decoder([]), stops)
    sent = before.push(ids[:at])
    after = TextStream(byte_level().decoder([]), stops)
    assert after.push(ids[:at]) == sent
    assert sent + after.push(ids[at:]) + after.finish() == one_by_one(text, stops)


@pytest.mark.case("B23")
def test_no_replacement_character_comes_in_the_middle_of_a_character() -> None:
    text = "你好 👩‍👩‍👧 é"
    stream = TextStream(byte_level().decoder([]))
    deltas = [stream.push([i]) for i in spell(text)]
    assert "".join(deltas) == text
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert stream.finish() == ""


@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_an_incomplete_last_character_is_shown_as_the_library_shows_it(kind: str) -> None:
    tokenizer = tokenizer_of[kind]()
    first = spell("é")[:1] if kind == "bytes" else [14 + 0xC3]
    stream = TextStream(tokenizer.decoder([]))
    assert stream.push(first) == ""
    assert stream.finish() == REPLACEMENT


def test_endless_broken_bytes_are_not_held_back_for_ever() -> None:
    stream = TextStream(byte_fallback().decoder([]))
    out = stream.push([14 + 0xFF] * 1000)
    assert len(out) > 900


def test_text_starts_with_a_space_only_where_the_prompt_goes_on() -> None:
    tokenizer = byte_fallback()
    hello, begin = 3, 1
    assert TextStream(tokenizer.decoder([5, hello])).push([hello]) == " hello"
    assert TextStream(tokenizer.decoder([hello, begin])).push([hello]) == "hello"


def test_special_tokens_have_no_text_and_change_none() -> None:
    stream = TextStream(byte_fallback().decoder([]))
    assert stream.push([3, *[1] * 20, 4]) == "hello world"
    stream = TextStream(byte_level().decoder([]))
    assert stream.push([*spell("a"), 256, 259, 100_000, *spell("b")]) == "ab"


@pytest.mark.case("B25")
def test_a_near_miss_is_emitted_in_full() -> None:
    stream = TextStream(byte_level().decoder([]), ["</ans>"])
    deltas = [stream.push([i]) for i in spell("x</an y</ans")]
    assert "".join(deltas) == "x</an y"
    assert stream.finish() == "</ans"


@pytest.mark.case("B25", "B26")
@pytest.mark.parametrize(
    ("stops", "text", "cut"),
    [
        (["\nObservation:"], "Thought\nObservation: 1", "Thought"),
        (["ZZZ", "\n\n"], "one\n\ntwo", "one"),
        (["abcd", "bc"], "xabcd", "xa"),
        (["bcd", "abcd"], "xabcd", "x"),
        (["aab"], "aaab", "a"),
    ],
)
def test_the_stop_that_is_complete_first_cuts(stops: list[str], text: str, cut: str) -> None:
    stream = TextStream(byte_level().decoder([]), stops)
    assert stream.push(spell(text)) + stream.finish() == cut
    assert stream.stopped


def test_nothing_comes_after_a_stop_string_not_even_half_a_character() -> None:
    stream = TextStream(BytesDecoder({0: b"ab\xc3"}), ["b"])
    assert stream.push([0]) == "a"
    assert stream.finish() == ""


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [(b"\xdeu", [0, 1]), (b"a\xf0\x9fu", [0, 1, 1, 2]), ("é👩u".encode(), [0, 0, 1, 1, 1, 1, 2])],
)
@pytest.mark.parametrize("window", [False, True])
def test_a_token_starts_behind_the_characters_that_it_leaves_incomplete(
    pieces: bytes, starts: list[int], window: bool
) -> None:
    decode = WindowDecoder(lambda ids: bytes(ids).decode("utf-8", "replace"), ())
    stream = TextStream(decode if window else BytesDecoder({i: bytes([i]) for i in range(256)}), ["zz"])
    out, found = 0, []
    for token in pieces:
        found.append(out + stream.start(token))
        out += len(stream.push((token,)))
    assert found == starts
