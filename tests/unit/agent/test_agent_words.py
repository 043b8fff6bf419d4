"""The fast way from text to ids gives the library's ids, for every text."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from exahpc.agent.tokenizer import Tokenizer
from exahpc.agent.words import _LATER, _MOST_BLOCKS, Words, words

LEARNT = [
    "Once upon a time, there weren't 12,345 fish (or 7)!\n\n  They swam\tin the sea; it's SO cold: -3.5 °C "
] * 9
SPECIAL = ["<|end|>", "<|end", "<|begin|>"]


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def byte_level(**given: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **given)


PLAIN: dict[str, Any] = {
    "gpt-2": byte_level(),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
    "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), byte_level()]),
    "qwen": pre_tokenizers.Sequence([split(_LATER % ""), byte_level(use_regex=False)]),
    "llama": pre_tokenizers.Sequence([split(_LATER % "{1,3}"), byte_level(use_regex=False)]),
    "own": pre_tokenizers.Sequence([split(r"\p{Lu}?\p{Ll}+|[\p{N}\p{P}]|\s"), byte_level(use_regex=False)]),
}


def backend(kind: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = PLAIN[kind]
    made.decoder = decoders.ByteLevel()
    if kind == "qwen":
        made.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        LEARNT,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A <|end|>", special_tokens=[(t, made.token_to_id(t)) for t in ("<|begin|>", "<|end|>")]
    )
    return made


BACKENDS = {kind: backend(kind) for kind in PLAIN}
FAST = {kind: words(made) for kind, made in BACKENDS.items()}

scraps = st.sampled_from(
    [
        *string.printable,
        *SPECIAL,
        *"éß“”日本ſİ\u0301\u2028\x1c\x85\x00\x7f\U0001f600",
        "'s",
        "'LL",
        "  ",
        "\r\n",
        "ab cd ",
    ]
)
texts = st.lists(scraps | st.text(max_size=3)).map("".join)
long_texts = st.lists(
    st.sampled_from(["the sea ", "it's 12 ", "naïve a b ", "\n\n x", "<|end|>", "日本 "]),
    min_size=80,
    max_size=120,
)


def the_same(kind: str, text: str) -> None:
    fast, made = FAST[kind], BACKENDS[kind]
    assert fast is not None
    for special in (False, True):
        assert fast.encode(text, special) == made.encode(text, add_special_tokens=special).ids, text


@pytest.mark.parametrize("kind", PLAIN)
@given(text=texts)
def test_a_text_has_the_librarys_ids(kind: str, text: str) -> None:
    the_same(kind, text)


@pytest.mark.parametrize("kind", PLAIN)
@settings(max_examples=15)
@given(parts=long_texts)
def test_so_has_a_long_one_that_goes_in_blocks(kind: str, parts: list[str]) -> None:
    the_same(kind, "".join(parts))
    the_same(kind, "".join(parts) + " more")


@pytest.mark.parametrize("kind", PLAIN)
def test_so_have_all_sequences_of_ascii_characters(kind: str) -> None:
    draw = random.Random(0)
    for _ in range(30):
        the_same(kind, "".join(chr(draw.randrange(128)) for _ in range(draw.randrange(600))))


def test_a_known_beginning_is_not_worked_out_again() -> None:
    fast = FAST["gpt-2"]
    assert fast is not None
    text = "".join(random.Random(1).choice(["sea ", "time ", "fish "]) for _ in range(2000))
    fast.encode(text, special=False)
    known = dict(fast._blocks)
    assert 0 < len(known) <= _MOST_BLOCKS
    fast.encode(text + "and so on it goes", special=False)
    (new,) = fast._blocks.keys() - known.keys()
    assert new.endswith("and so on it goes")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exahpc.agent.words._MOST_BLOCKS", 3)
    monkeypatch.setattr("exahpc.agent.words._MOST_WORDS", 5)
    fast = words(BACKENDS["gpt-2"])
    assert fast is not None
    for number in range(20):
        text = f"it was number{number} of the many fish " * 30
        assert fast.encode(text, special=True) == BACKENDS["gpt-2"].encode(text).ids
        assert len(fast._blocks) <= 3
        assert len(fast._ids) <= 5


@pytest.mark.parametrize(
    "unlike",
    [
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {"pre_tokenizer": pre_tokenizers.Sequence([split(r"(?<=a)b"), byte_level()])},
        {"pre_tokenizer": pre_tokenizers.Sequence([split(r"\p{Han}+"), byte_level()])},
        {"pre_tokenizer": pre_tokenizers.Sequence([split(r"^a"), byte_level()])},
        {"normalizer": normalizers.Lowercase()},
        {"model": models.BPE(dropout=0.1)},
        {"model": models.WordLevel({"a": 0}, unk_token="a")},
    ],
)
def test_a_tokenizer_that_works_in_another_way_is_left_to_the_library(unlike: dict[str, Any]) -> None:
    made = backend("gpt-2")
    for name, value in unlike.items():
        setattr(made, name, value)
    assert words(made) is None


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_so_is_one_whose_added_tokens_do_more_than_stand_for_themselves(flag: str) -> None:
    made = backend("gpt-2")
    made.add_tokens([tokenizers.AddedToken("<x>", **{"normalized": False, flag: True})])
    assert words(made) is None


def test_a_tokenizer_uses_it() -> None:
    made = Tokenizer(BACKENDS["llama"])
    assert isinstance(made._words, Words)
    assert made.encode("the sea<|end|>", special=True) == BACKENDS["llama"].encode("the sea<|end|>").ids
