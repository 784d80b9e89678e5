"""Data sets from files, folders and a hub: splits, columns, filters, overlap."""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib.util
import io
import json
import lzma
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.data.dataset import NULL, Dataset
from agentrl.envs.data.overlap import Overlap
from agentrl.envs.data.rows import parse_rows, read_rows
from agentrl.errors import ConfigError, EnvError
from tests.command_line import run_agentrl
from tests.redteam.files import zstd

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=12)


@given(st.lists(st.fixed_dictionaries({"a": CELL, "b, c": CELL}), max_size=5))
@pytest.mark.slow
def test_a_csv_file_is_read_as_it_was_written(rows: list[dict[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["a", "b, c"])
    writer.writeheader()
    writer.writerows(rows)
    found = [row for _, row in parse_rows("x.csv", io.BytesIO(text.getvalue().encode()))]
    assert found == rows


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.csv", b"a,b\n1\n", "line 2: its values are not as many as the columns"),
        ("x.csv", b"a,b\n1,2,3\n", "line 2: its values are not as many as the columns"),
        ("x.csv", b"a,b,a\n1,2,3\n", "line 1: the column 'a' is there twice"),
        ("x.csv", b'a,b\n"1,2\n', "line 2: unexpected end of data: a cell that begins with a quotation mark"),
        ("x.csv", b'a,b\n1,"2\\"3"\n', "line 2: ',' expected"),
        ("x.csv", b"a;b\n1;2;3\n", "line 2: its values are not as many as the columns, which semicolons divide"),
        ("x.csv", b"a;b\tc\n1;2\t3\n", "line 1: its columns may be divided by semicolons or tabs"),
        ("x.json", b"{", "line 1: not a JSON object"),
        ("x.json", b"[{]", "not JSON"),
        ("x.json", b"[1]", "a list of objects is expected"),
        ("x.jsonl", b"[1]\n", "line 1: not a JSON object"),
        ("x.jsonl", b"\xff\xfe\n", "not UTF-8"),
        ("x.jsonl", b'{"a": 1, "b": {"c": 1, "c": 2}}', "line 1: .* the key 'c' is there twice"),
        ("x.json", b'[{"a": 1, "a": 2}]', "the key 'a' is there twice"),
        ("x.parquet", b"PAR1", "not a readable Parquet file"),
        ("x.parq", b"PAR1\x15\x04", "it is a Parquet file: name it x.parquet"),
        ("x.arrows", b"\xff\xff\xff\xff\x78", "it is an Arrow stream: name it x.arrow"),
        ("x.arrow", b"\xff\xff\xff\xff\x78", "not a readable Arrow file"),
        ("x.arrow", b"ARROW1\0\0\xff\xff\xff\xff", "not a whole Arrow file"),
        ("x.db", b"SQLite format 3\0", "it is an SQLite database: .*> x.csv"),
        ("x.CSV.zip", b"PK\x03\x04a,b", "packed by zip: unpack it"),
        ("x.jsonl.gz", b"[1]", "not an intact gzip file"),
        ("x.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-4], "not an intact gzip file"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_named_with_the_line(name: str, data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(parse_rows(name, io.BytesIO(data)))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.json", b'[{"a": "1"}, {"a": "2"}]'),
        ("x.json", b'{"Version": 1.0, "Data": [{"a": "1"}, {"a": "2"}]}'),
        ("x.json", b'{"a": "1"}\n{"a": "2"}\n'),
        ("x.csv", b"a\n1\n2\n"),
        ("x.tsv", b"a\tb\n1\t\n2\t\n"),
        ("x.jsonl", b'{"a": "1"}\n\n{"a": "2"}'),
        ("X.CSV", b"a\n1\n2\n"),
    ],
)
def test_every_form_of_a_text_file_is_read_packed_or_not(name: str, data: bytes) -> None:
    """Only gzip was read: folders as they are published often have zstd."""
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    if importlib.util.find_spec("pyarrow"):
        pack["zst"] = lambda data: zstd(data[:3]) + zstd(data[3:])  # in frames, as parallel packers write them
    for file, content in ((name, data), *((f"{name}.{ending}", way(data)) for ending, way in pack.items())):
        assert [row["a"] for _, row in parse_rows(file, io.BytesIO(content))] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("x.csv", b"question;answer\nWho, when?;1,5\n", [{"question": "Who, when?", "answer": "1,5"}]),
        ("x.csv", b'\xef\xbb\xbfa;b\r\n"1;\n2";3\r\n', [{"a": "1;\n2", "b": "3"}]),
        ("x.csv", b"a\tb\n1\t2\n", [{"a": "1", "b": "2"}]),
        ("x.tsv", b"a,b\n1,2\n", [{"a": "1", "b": "2"}]),
        ("x.csv", b"a;b,c\n1,2\n", [{"a;b": "1", "c": "2"}]),
        ("x.csv", b'"a;b"\n1\n', [{"a;b": "1"}]),
        ("x.csv", b"", []),
    ],
)
def test_the_first_line_says_what_divides_columns(name: str, data: bytes, rows: list[dict[str, str]]) -> None:
    """Of "question;answer", as spreadsheets write it, one column was made, and the answer's column was asked for."""
    assert [row for _, row in parse_rows(name, io.BytesIO(data))] == rows


def test_arrow_files_and_streams_are_read_as_parquet_is(tmp_path: Path) -> None:
    """They were refused, though `datasets` saves them; what it caches beside them would be rows twice."""
    pyarrow = pytest.importorskip("pyarrow")
    ipc = pytest.importorskip("pyarrow.ipc")
    kinds = pyarrow.array(["x", None, "y"]).dictionary_encode()
    levels = pyarrow.array([3, 4, 3]).dictionary_encode()
    talks = [[{"role": "user", "content": "q"}], [], None]
    table = pyarrow.table({"n": [1, 2, 3], "x": [0.5, float("nan"), None], "k": kinds, "l": levels, "m": talks})
    wanted = [row | {"x": 0.5 if row["n"] == 1 else None} for row in table.to_pylist()]
    for name, compression in (("plain", None), ("lz4", "lz4"), ("zstd", "zstd")):
        for opened, ending in ((ipc.new_stream, "arrow"), (ipc.new_file, "feather")):
            file = tmp_path / name / f"train-0.{ending}"
            file.parent.mkdir(exist_ok=True)
            with opened(file, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as out:
                out.write_table(table, max_chunksize=2)
            assert [row for _, row in read_rows(file)] == wanted
        (tmp_path / name / "cache-1f.arrow").write_bytes(file.read_bytes())
        file.unlink()
        assert rows(tmp_path / name, "train") == wanted


def test_folders_of_partitions_are_columns(tmp_path: Path) -> None:
    """Rows of such folders lost the columns that their folders' names are, in silence."""
    for at, name in enumerate(("lang=en/level=1", "lang=de%2Fat/level=-20", f"lang={NULL}/level={NULL}")):
        write(tmp_path / name / "day=007", train_jsonl=numbered(1, at))
    found = rows(tmp_path, "train", where={"level": {"min": -50}})
    assert found == [
        {"lang": "de/at", "level": -20, "day": "007", "n": 1},
        {"lang": "en", "level": 1, "day": "007", "n": 0},
    ]


def test_a_column_that_a_parquet_file_has_twice_is_refused() -> None:
    """The last of them was read, and the first left out in silence; a CSV file was refused."""
    pyarrow = pytest.importorskip("pyarrow")
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table([["1"], ["2"]], names=["a", "a"]), file)
    with pytest.raises(ConfigError, match="the column 'a' is there twice"):
        list(parse_rows("x.parquet", file))


def test_a_truth_value_chooses_the_rows_of_a_table_that_write_it_in_any_letters(tmp_path: Path) -> None:
    """`env.where.kept=true` took the rows with "True" and left those with "true" out."""
    (tmp_path / "x.csv").write_text("n,kept\n1,true\n2,False\n3,TRUE\n4,\n")
    assert [row["n"] for row in rows(tmp_path / "x.csv", "train", where={"kept": True})] == ["1", "3"]
    assert [row["n"] for row in rows(tmp_path / "x.csv", "train", where={"kept": False})] == ["2"]


def test_a_cell_may_be_longer_than_pythons_own_limit(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\n" + "x" * 200_000 + "\t1\n")
    ((line, row),) = read_rows(tmp_path / "x.tsv")
    assert (line, len(row["a"]), row["b"]) == (2, 200_000, "1")


def write(folder: Path, **files: list[dict[str, Any]]) -> Path:
    for name, rows in files.items():
        file = folder / name.replace("__", "/").replace("_jsonl", ".jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(path: Path, split: str, **settings: Any) -> list[dict[str, Any]]:
    return [row for _, row in Dataset(str(path), **settings).rows(split)]


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(start, start + count)]


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(ConfigError, match=r"env\.path = '': name a file, a folder"):
        list(Dataset("").every_row())


def test_a_folders_files_belong_to_the_split_whose_name_is_in_their_path(tmp_path: Path) -> None:
    write(tmp_path, data__train__1_jsonl=numbered(3), test_jsonl=numbered(2, 10), validation_jsonl=numbered(2, 20))
    assert rows(tmp_path, "train") == numbered(3)
    assert rows(tmp_path, "eval") == numbered(2, 10)
    assert rows(tmp_path / "test.jsonl", "eval") == numbered(2, 10)
    with pytest.raises(ConfigError, match="no files for the split 'train'"):
        rows(tmp_path / "test.jsonl", "train")
    write(tmp_path, en__train_jsonl=numbered(1, 30))
    assert rows(tmp_path, "train", config="en") == numbered(1, 30)[:1] or rows(tmp_path, "eval", config="en")
    with pytest.raises(ConfigError, match=r"env.config = 'de' \(there are data, en, train\)"):
        rows(tmp_path, "train", config="de")


def test_without_a_file_for_eval_the_files_have_both_splits(tmp_path: Path) -> None:
    write(tmp_path, rows_jsonl=numbered(40))
    assert rows(tmp_path, "train") == rows(tmp_path, "eval") == numbered(40)
    assert Dataset(str(tmp_path)).shared()
    write(tmp_path, test_jsonl=numbered(2))
    assert not Dataset(str(tmp_path)).shared()


def test_columns_are_renamed_and_rows_chosen_and_a_wrong_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    data = [{"prompt": f"q{n}", "meta": {"level": n, "kind": "ab"[n % 2]}} for n in range(6)]
    write(tmp_path, train_jsonl=data, test_jsonl=data[:1])
    chosen = rows(tmp_path, "train", columns={"question": "prompt"}, where={"meta.kind": "b", "meta.level": {"min": 2}})
    assert [row["question"] for row in chosen] == ["q3", "q5"]
    assert [row["prompt"] for row in rows(tmp_path, "train", where={"meta.level": [0, 4]})] == ["q0", "q4"]
    (tmp_path / "keep.py").write_text("def keep(row): return row['prompt'] == 'q2'")
    assert len(rows(tmp_path, "train", where=f"{tmp_path}/keep.py:keep")) == 1
    (tmp_path / "keep.py").write_text("def keep(row):\n    return row['there']\n")
    with pytest.raises(ConfigError, match=r"jsonl, row 1: env\.where='.*keep\.py:keep' raised KeyError: 'there'"):
        rows(tmp_path, "train", where=f"{tmp_path}/keep.py:keep")
    with pytest.raises(ConfigError, match=r"row 1: there is no column 'promt'; did you mean 'prompt'\?"):
        rows(tmp_path, "train", columns={"question": "promt"})


# ------------------------------------------------------------------------------------------------ the hub


@contextmanager
def served(files: dict[str, bytes], ranges: bool = True) -> Iterator[tuple[str, list[int]]]:
    """A hub with one data set, me/set, and how many bytes each answer had."""
    sent: list[int] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = unquote(self.path).partition("?")
            if path == "/api/datasets/me/set/tree/main":
                names = sorted(files)
                page = names[1:] if "second" in query else names[:1]
                link = {} if "second" in query else {"Link": f'<{url}{path}?second=1>; rel="next"'}
                entries = [{"type": "file", "path": name, "size": 1} for name in page]
                return self.answer(200, json.dumps([*entries, {"type": "directory", "path": "d"}]).encode(), link)
            data = files.get(path.removeprefix("/datasets/me/set/resolve/main/"))
            if data is None:
                return self.answer(404, b"", {})
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1]
            sent.append(len(part))
            if not ranges:
                return self.answer(200, data, {})
            return self.answer(206, part, {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

        def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield url, sent
    finally:
        server.shutdown()
        server.server_close()


def parquet(data: dict[str, list[Any]], **options: Any) -> bytes:
    pyarrow, written = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    written.write_table(pyarrow.table(data), file, **options)
    return file.getvalue()


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_streamed_and_what_is_not_read_is_not_transferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.envs.data.hub.READ_BYTES", 4096)
    noise = [str(n) * 500 for n in range(4000)]
    big = parquet({"n": list(range(4000)), "text": noise}, row_group_size=100, compression="none", use_dictionary=False)
    lines = b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(5))
    with served({"data/train-00000-of-00001.parquet": big, "data/test a.jsonl": lines, "README.md": b""}) as (
        url,
        sent,
    ):
        data = Dataset("hf://me/set", endpoint=url)
        assert [row["n"] for _, row in data.rows("eval")] == [0, 1, 2, 3, 4]
        sent.clear()
        found = data.rows("train")
        assert next(found)[1]["n"] == 0
        found.close()  # type: ignore[attr-defined]
        assert sum(sent) < len(big) / 2
        with pytest.raises(EnvError, match="404"):
            list(Dataset("hf://me/other", endpoint=url).rows("train"))
    with served({"train.jsonl": lines}, ranges=False) as (url, _), pytest.raises(EnvError, match="read in parts"):
        list(Dataset("hf://me/set", endpoint=url).rows("train"))


# --------------------------------------------------------------------------------------------- the overlap

WORDS = st.lists(st.sampled_from("abc"), max_size=8)


@given(st.lists(WORDS, max_size=4), WORDS, st.integers(1, 4))
@pytest.mark.slow
def test_texts_overlap_where_they_share_a_run_of_words_or_are_the_same_short_text(
    known: list[list[str]], text: list[str], run: int
) -> None:
    def runs(words: list[str]) -> set[tuple[str, ...]]:
        if not words:
            return set()
        return {tuple(words[at : at + run]) for at in range(max(len(words) - run, 0) + 1)}

    expected = any(runs(words) & runs(text) for words in known)
    assert Overlap([", ".join(words).upper() for words in known], run).shared(" ".join(text)) == expected


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
def test_the_command_counts_the_rows_that_overlap_and_writes_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path,
        train_jsonl=[{"question": f"number {n} of many questions here"} for n in range(4)],
        test_jsonl=[{"question": "Number 2 of many questions, here?"}],
    )
    ended = partial(run_agentrl, "decontaminate", "train.jsonl")
    assert ended("--against", "test.jsonl", "--words", "5") == 1
    assert "1 of 4 rows share a run of 5 words" in capsys.readouterr().out
    assert ended("--against", "test.jsonl", "--words", "5", "--out", "clean.jsonl") == 0
    assert len([*read_rows("clean.jsonl")]) == 3
    assert ended("--against", "test.jsonl", "--words", "5", "--out", "clean.jsonl") == 2
    assert ended("--against", "test.jsonl", "--column", "text") == 2
