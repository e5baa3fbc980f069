"""Reading data: every form, columns by name and number, and clear errors."""

import json
from collections import Counter
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.data.texts import Row, read_data


def test_the_built_in_corpus_keeps_its_promises():
    lines = resources.files("gradleak.data").joinpath("corpus.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert len(entries) >= 160
    assert len({entry["text"].lower() for entry in entries}) == len(entries)
    themes = Counter(entry["theme"] for entry in entries)
    assert len(themes) >= 5
    for theme in themes:
        assert {entry["label"] for entry in entries if entry["theme"] == theme} == {0, 1}


def test_plain_text(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n  two  \n")
    assert read_data(tmp_path / "a.txt") == [Row("one"), Row("two")]


@pytest.mark.parametrize(("suffix", "sep"), [(".csv", ","), (".tsv", "\t")])
def test_tables(tmp_path, suffix, sep):
    path = tmp_path / f"a{suffix}"
    path.write_text(f"id{sep}sentence{sep}label\n7{sep}hello there{sep}1\n8{sep}bye{sep}0\n")
    expected = [Row("hello there", 1), Row("bye", 0)]
    assert read_data(path) == expected
    assert read_data(path, "sentence", "label") == expected
    assert read_data(path, "2", "3") == expected
    path.write_text(f"x{sep}1{sep}hello there\ny{sep}0{sep}bye\n")
    assert read_data(path, "3", "2") == expected


def test_quotes_and_label_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"well, yes",POSITIVE\n')
    assert read_data(path) == [Row("well, yes", "POSITIVE")]
    tsv = tmp_path / "a.tsv"
    tsv.write_text('text\tlabel\n"unbalanced\t1\nnext\t0\n')
    assert read_data(tsv) == [Row('"unbalanced', 1), Row("next", 0)]


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a b", "label": 1}\n\n{"label": 0, "text": "c"}\n')
    assert read_data(path) == [Row("a b", 1), Row("c", 0)]
    path.write_text('{"body": "a b", "y": 1}\n')
    assert read_data(path, "body", "y") == [Row("a b", 1)]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("missing.txt", None, (None, None), "no data file"),
        ("a.txt", "\n \n", (None, None), "holds no texts"),
        ("a.csv", "", (None, None), "holds no texts"),
        ("a.csv", "text,label\n", (None, None), "holds no texts"),
        ("a.csv", "a,b\n1,2\n", (None, None), "which column holds the text"),
        ("a.csv", "text,label\nx,1\n", ("txt", None), "did you mean 'text'"),
        ("a.csv", "text,label\nx,1\n", ("3", None), "no column 3"),
        ("a.csv", "text,label\nx\n", (None, None), "row 2 has 1 columns"),
        ("a.csv", "text,label\nx,1\ny, \n", (None, None), "row 3 has a text and no label"),
        ("a.jsonl", '{"text": "x", "label": null}\n', (None, None), "line 1 has a text and no label"),
        ("a.jsonl", "{oops\n", (None, None), "line 1 is not JSON"),
        ("a.jsonl", "[1]\n", (None, None), "not a JSON object"),
        ("a.jsonl", '{"text": 5}\n', (None, None), "is not a text"),
        ("a.txt", "x\n", ("1", None), "has no columns"),
        ("a.parquet", "x", (None, None), "unknown kind of file"),
    ],
)
def test_bad_files(tmp_path, name, content, columns, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(GradleakError, match=message):
        read_data(tmp_path / name, *columns)


def test_bytes_that_are_not_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\n\xff\xfe\x00")
    with pytest.raises(GradleakError, match="UTF-8"):
        read_data(tmp_path / "a.csv")


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=300), st.sampled_from([".txt", ".csv", ".tsv", ".jsonl"]), st.sampled_from([None, "text", "1"])
)
def test_anything_else_is_rows_or_a_clear_error(tmp_path_factory, content, suffix, column):
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(content)
    try:
        rows = read_data(path, None if suffix == ".txt" else column)
    except GradleakError as error:
        assert "\n" not in str(error)
    else:
        assert rows
        assert all(row.text.strip() for row in rows)


def test_labels_of_every_task(tmp_path):
    """Numbers, several classes, tags of words, and words as a list."""
    lines = tmp_path / "data.jsonl"
    lines.write_text(
        '{"text": "a", "label": 0.5}\n{"text": "b", "label": [0, "x"]}\n{"text": "c", "label": "x;y"}\n'
        '{"text": "d", "label": [1.0, 0.0]}\n{"text": ["e", "f"], "label": [1, 2]}\n'
    )
    labels = [(row.text, row.label) for row in read_data(lines)]
    assert labels == [("a", 0.5), ("b", (0, "x")), ("c", "x;y"), ("d", (1.0, 0.0)), ("e f", (1, 2))]
    table = tmp_path / "data.csv"
    table.write_text("text,label\na,-0.25\nb,0;2\nc,O B-PER\nd,3\n")
    assert [row.label for row in read_data(table)] == [-0.25, "0;2", "O B-PER", 3]


@pytest.mark.parametrize("text", ['["two words", "x"]', "[1]", "{}"])
def test_lists_that_are_no_words_are_refused(tmp_path, text):
    lines = tmp_path / "data.jsonl"
    lines.write_text(f'{{"text": {text}, "label": 1}}\n')
    with pytest.raises(GradleakError, match="is not a text"):
        read_data(lines)
