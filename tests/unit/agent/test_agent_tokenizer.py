"""The tokenizer means what transformers means by the same folder; a broken folder is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exahpc.agent.tokenizer import Tokenizer
from exahpc.errors import DeploymentError
from exahpc.openai.request import Message
from tests.tiny import make_tokenizer

BEGIN, END = 256, 257


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path)
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **fields}))


PREFIX = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [BEGIN], "tokens": ["<|begin|>"]}},
}


@pytest.mark.parametrize("flag", [None, True, False])
@pytest.mark.parametrize("post_processor", [None, PREFIX])
def test_what_stands_around_a_text_is_what_transformers_puts_there(
    folder: Path, post_processor: dict[str, Any] | None, flag: bool | None
) -> None:
    transformers = pytest.importorskip("transformers")
    change(folder / "tokenizer.json", post_processor=post_processor)
    if flag is not None:
        change(folder / "tokenizer_config.json", add_bos_token=flag)
    mine = Tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    plain = mine.encode("a\0é", special=False)
    assert mine.encode("a\0é", special=True) == ([BEGIN, *plain] if post_processor else plain)
    assert mine.encode("a\0é", special=True) == theirs("a\0é")["input_ids"]
    assert plain == theirs("a\0é", add_special_tokens=False)["input_ids"]


def test_a_word_that_the_configuration_calls_special_has_no_text(folder: Path) -> None:
    change(folder / "tokenizer_config.json", pad_token="!")
    mine = Tokenizer.load(folder)
    assert mine.decode(mine.encode("a!b", special=False)) == "ab"


def test_a_chat_is_tokenized_as_transformers_does(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    change(folder / "tokenizer.json", post_processor=PREFIX)
    mine = Tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert mine.template is not None
    text = mine.template.render([Message("user", "hi")], 0, {})
    expected = theirs.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert mine.encode(text, special=False) == list(expected["input_ids"])


@pytest.mark.parametrize(
    ("generation", "model", "eos"),
    [
        ({"eos_token_id": [5, 3]}, {"eos_token_id": 9}, (3, 5, END)),
        ({"eos_token_id": 5}, {}, (5, END)),
        ({}, {"eos_token_id": 9}, (9, END)),
        (None, None, (END,)),
    ],
)
def test_an_answer_ends_at_every_token_that_the_checkpoint_names(
    folder: Path, generation: dict[str, Any] | None, model: dict[str, Any] | None, eos: tuple[int, ...]
) -> None:
    for name, fields in (("generation_config.json", generation), ("config.json", model)):
        if fields is not None:
            change(folder / name, **fields)
    assert Tokenizer.load(folder).eos_ids == eos


def test_the_vocabulary_is_the_models(folder: Path) -> None:
    assert Tokenizer.load(folder).vocabulary == 261
    change(folder / "config.json", vocab_size=320)
    assert Tokenizer.load(folder).vocabulary == 320


def test_templates_come_from_the_file_then_from_the_configuration(folder: Path) -> None:
    def rendered() -> str:
        template = Tokenizer.load(folder).template
        assert template is not None
        return template.render([Message("user", "hi")], 0, {})

    assert rendered() == "<|user|>hi<|end|><|assistant|>"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}]
    change(folder / "tokenizer_config.json", chat_template=several, eos_token={"content": "<|end|>"})
    assert rendered() == "d<|end|>"
    (folder / "chat_template.jinja").write_text("file")
    assert rendered() == "file"


def test_a_model_without_template_has_none(folder: Path) -> None:
    change(folder / "tokenizer_config.json", chat_template=None)
    assert Tokenizer.load(folder).template is None


def test_settings_that_cut_or_fill_texts_are_switched_off(folder: Path) -> None:
    change(
        folder / "tokenizer.json",
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "x",
        },
    )  # fmt: skip
    assert len(Tokenizer.load(folder).encode("abcd", special=True)) == 4


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(DeploymentError, match=name):
        Tokenizer.load(folder)


def test_one_token_stands_for_a_bounded_number_of_bytes(folder: Path) -> None:
    assert Tokenizer.load(folder).longest_token == len("<|assistant|>")
