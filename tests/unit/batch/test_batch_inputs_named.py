"""Which files a batch is made from; what is written is never one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exahpc.batch.check import check_inputs
from exahpc.batch.inputs.detect import detect
from exahpc.batch.inputs.options import InputOptions, find_inputs, refuse_output
from exahpc.batch.run import prepare
from exahpc.errors import BatchError


def test_patterns_are_taken_in_order_and_each_file_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "[odd].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link.txt").symlink_to("a.txt")
    found = find_inputs(
        [tmp_path / "[odd].txt", tmp_path / "b.txt", tmp_path / "[a-z]*.txt", f"{tmp_path}/**/c.txt"]
    )
    assert [path.relative_to(tmp_path).as_posix() for path in found.paths] == [
        "[odd].txt",
        "b.txt",
        "a.txt",
        "deep/er/c.txt",
    ]


def test_what_cannot_be_an_input_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for what, words in {"none*.txt": "none", "pipe": "no regular file", ".": "no regular file"}.items():
        with pytest.raises(BatchError, match=words):
            find_inputs([tmp_path / what])
    with pytest.raises(BatchError, match="no input is named"):
        find_inputs([])


@pytest.mark.parametrize("how", ["same", "hard", "soft", "other way", "inside"])
def test_an_output_that_is_an_input_by_any_name_is_refused_and_the_input_stays(tmp_path: Path, how: str) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.h5"
    source.write_text("prompt")
    if how == "same":
        output = tmp_path / "." / "in.txt"
    elif how == "hard":
        os.link(source, output)
    elif how == "soft":
        output.symlink_to(source)
    elif how == "other way":
        source.rename(output)
        source.symlink_to(output)
    else:
        (tmp_path / "out.h5.parts").mkdir()
        source = source.rename(tmp_path / "out.h5.parts" / "bad.jsonl")
    with pytest.raises(BatchError, match="choose another output"):
        prepare(source, output)
    assert source.read_text() == "prompt"
    refuse_output(tmp_path / "elsewhere.h5", [source])


REQUEST = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "p"}}'


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.jsonl", REQUEST, "requests"),
        ("a.jsonl", "junk", "requests"),
        ("a.jsonl", '\ufeff\n  {"prompt": "x"}', "jsonl"),
        ("a.json", REQUEST, "requests"),
        ("a.json", f"[{REQUEST}]", "json"),
        ("a.json", '["x"]', "json"),
        ("a.data", REQUEST, "requests"),
        ("a.data", "plain", "text"),
        ("a.data", "[brackets] in a text", "text"),
        ("a.txt", REQUEST, "text"),
        ("A.CSV", "prompt\nx", "csv"),
        ("a.data", "PAR1", "parquet"),
        ("a.jsonl", "", "requests"),
    ],
)
def test_the_form_is_found_from_name_and_content(tmp_path: Path, name: str, content: str, form: str) -> None:
    (tmp_path / name).write_text(content)
    assert detect(tmp_path / name, InputOptions()).format == form
    assert detect(tmp_path / name, InputOptions(format="tsv")).format == "tsv"


def test_other_options_than_those_it_began_with_do_not_go_on_with_a_batch(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a\nb\n")
    prepare(find_inputs([source]), tmp_path / "out.h5").release()
    other = InputOptions(column="x")
    with pytest.raises(BatchError, match="give the same options"):
        prepare(find_inputs([source], other), tmp_path / "out.h5")
    more = tmp_path / "more.txt"
    more.write_text("c")
    with pytest.raises(BatchError, match="2 inputs are named, this batch began with 1"):
        prepare(find_inputs([source, more]), tmp_path / "out.h5")


def test_a_check_counts_and_leaves_only_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.jsonl").write_text(REQUEST)
    found = check_inputs(find_inputs([tmp_path / "a.txt", tmp_path / "b.jsonl"]))
    assert (found.files, found.rows, found.chats, found.completions) == (2, 3, 2, 1)
    assert list((tmp_path / "t").iterdir()) == []
    (tmp_path / "b.jsonl").write_text("junk\n" * 70)
    report = tmp_path / "report.jsonl"
    with pytest.raises(BatchError, match=f"and 20 more\nAll are listed in {report}"):
        check_inputs(find_inputs([tmp_path / "b.jsonl"]), report=report)
    assert len(report.read_text().splitlines()) == 70
    assert list((tmp_path / "t").iterdir()) == []
