"""Files that somebody else made, which a run or a command reads: data, settings, models, tasks, checkpoints.

A payload is a Python expression. Of `ROWS` and `BOMBS` it is a file's name and bytes; of `SETTINGS` a text in YAML; of
`MODELS` and `FOLDERS` the files of a folder, those of a model besides `WHOLE`. Of `PICKLES` the payload is a module and
a name in it, which a checkpoint's pickle would call.
"""

from __future__ import annotations

import io

from tests.redteam.attack import Attack, attacks

UNNAMED = "reading ends with any other error than one sentence that names the file, or with none"
UNBOUNDED = "more is unpacked than a machine can hold, or reading ends otherwise than with one sentence"
RUN = "what the pickle names is called, or the checkpoint is taken"


def parquet() -> bytes:
    """A small table."""
    import pyarrow
    import pyarrow.parquet

    body = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [f"text {n}" for n in range(500)]}), body)
    return body.getvalue()


def long_list(length: int) -> bytes:
    """A table of a few kilobytes whose only row is a list of nothing."""
    import pyarrow
    import pyarrow.parquet

    body, nothing = io.BytesIO(), pyarrow.nulls(length, pyarrow.int8())
    row = pyarrow.ListArray.from_arrays(pyarrow.array([0, length], pyarrow.int32()), nothing)
    pyarrow.parquet.write_table(pyarrow.table({"a": row}), body)
    return body.getvalue()


def long_value(length: int) -> bytes:
    """A table of a few kilobytes whose only value is long."""
    import pyarrow
    import pyarrow.parquet

    body = io.BytesIO()
    table = pyarrow.table({"a": pyarrow.array([bytes(length)])})
    pyarrow.parquet.write_table(table, body, compression="zstd", use_dictionary=False, write_statistics=False)
    return body.getvalue()


def shared(table: str) -> bytes:
    """A table of a few kilobytes whose rows share one long text, each row or each item of its lists."""
    import pyarrow
    import pyarrow.parquet

    body = io.BytesIO()
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 30_000, "int32"), ["x" * (1 << 20)])
    row = pyarrow.ListArray.from_arrays(pyarrow.array([0, 30_000], "int32"), values)
    pyarrow.parquet.write_table(
        pyarrow.table({"a": values if table == "rows" else row}),
        body,
        compression="zstd",
        dictionary_pagesize_limit=1 << 24,
    )
    return body.getvalue()


def empty_rows(count: int) -> bytes:
    """A table of a few kilobytes of rows without a value."""
    import pyarrow
    import pyarrow.parquet

    body = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.nulls(count, pyarrow.int8())}), body)
    return body.getvalue()


def packed_batch(size: int) -> bytes:
    """An Arrow file of a few kilobytes with a batch of zeros."""
    import pyarrow
    import pyarrow.ipc as ipc

    table = pyarrow.table({"a": pyarrow.array([bytes(size)])})
    body = io.BytesIO()
    with ipc.new_file(body, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_table(table)
    return body.getvalue()


def zstd(data: bytes) -> bytes:
    """Data packed by zstd."""
    import pyarrow

    body = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(body, "zstd") as out:
        out.write(data)
    return bytes(body.getvalue().to_pybytes())


def shared_arrow(kind: str) -> bytes:
    """An Arrow file of a few kilobytes whose rows share one long value."""
    import pyarrow
    import pyarrow.ipc as ipc

    values = {"text": ["x" * 100_000], "list": [[1] * 10_000]}
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.nulls(1 << 18, "int8").fill_null(0), values[kind])
    body = io.BytesIO()
    with ipc.new_file(body, (table := pyarrow.table({"a": column})).schema) as out:
        out.write_table(table)
    return body.getvalue()


ROWS = [
    Attack("nesting beyond a decoder's stack", """"a.jsonl", b'{"a":' * 100_000""", UNNAMED),
    Attack("such nesting in one list", """"a.json", b"[" * 100_000""", UNNAMED),
    Attack("such nesting, packed", """"a.jsonl.gz", gzip.compress(b'{"a":' * 100_000)""", UNNAMED),
    Attack("a number of thousands of digits", """"a.jsonl", b'{"a": ' + b"9" * 5000 + b"}" """, UNNAMED),
    Attack("text that is no UTF-8", """"a.jsonl", b'{"a": "\\xff"}'""", UNNAMED),
    Attack("text in two bytes a character", """"a.json", '[{"a": 1}]'.encode("utf-16")""", UNNAMED),
    Attack("a row that is none", """"a.jsonl", b"[1]" """, UNNAMED),
    Attack("rows among other things", """"a.json", b"[1, {}]" """, UNNAMED),
    Attack("a zip archive", """"a.jsonl", b"PK\\x03\\x04" + b"\\0" * 26""", UNNAMED),
    Attack("gzip in name alone", """"a.jsonl.gz", b"{}" """, UNNAMED),
    Attack("gzip that is cut", """"a.jsonl.gz", gzip.compress(b"{}" * 1000)[:-9]""", UNNAMED),
    Attack("gzip with another sum", """"a.jsonl.gz", gzip.compress(b'{"a": 1}')[:-8] + b"\\0" * 8""", UNNAMED),
    Attack("gzip with damaged blocks", """"a.jsonl.gz", gzip.compress(b"x")[:10] + b"\\xff" * 50""", UNNAMED),
    Attack("gzip within gzip", """"a.jsonl.gz", gzip.compress(gzip.compress(b"{}"))""", UNNAMED),
    Attack("a cell beyond all bounds", """"a.csv", b"a\\n" + b"x" * ((1 << 24) + 1)""", UNNAMED),
    Attack("a quotation that never ends", """"a.csv", b'a\\n"x'""", UNNAMED),
    Attack("more values than columns", """"a.csv", b"a\\n1,2" """, UNNAMED),
    Attack("Parquet in name alone", """"a.parquet", b"PAR1" * 9""", UNNAMED),
    Attack("Parquet that is cut", """"a.parquet", parquet()[:-20]""", UNNAMED),
    Attack(
        "a Parquet footer larger than its file",
        """"a.parquet", parquet()[:-8] + b"\\xff\\xff\\xff\\x7fPAR1" """,
        UNNAMED,
    ),
    Attack("Arrow in name alone", """"a.arrow", b"ARROW1\\0\\0" + b"\\xff" * 40 + b"ARROW1" """, UNNAMED),
    Attack("damaged pages of Parquet", """"a.parquet", b"PAR1" + b"\\xff" * 60 + parquet()[64:]""", UNNAMED),
]

BOMBS = [
    Attack("a line without end, packed", """"a.jsonl.gz", gzip.compress(b"[" * MOST_LINE + b"[[", 1)""", UNBOUNDED),
    Attack("a cell without end, packed", """"a.csv.gz", gzip.compress(b"a\\n" + b"x" * MOST_LINE, 1)""", UNBOUNDED),
    Attack("columns without end, packed", """"a.csv.gz", gzip.compress(b"a," * MOST_LINE, 1)""", UNBOUNDED),
    Attack(
        "values without end, packed", """"a.json.gz", gzip.compress(b"[" + b"{}," * (MOST_VALUES + 1), 1)""", UNBOUNDED
    ),
    Attack("a row of a Parquet file without end", """"a.parquet", long_list(MOST_VALUES + 1)""", UNBOUNDED),
    Attack("rows without end, packed", """"a.jsonl.gz", gzip.compress(b"{}\\n" * (MOST_ROWS + 1), 1)""", UNBOUNDED),
    Attack("a batch of an Arrow file without end", """"a.arrow", packed_batch(MOST_BATCH + 1)""", UNBOUNDED),
    Attack("a long text of all rows of an Arrow file", """"a.arrow", shared_arrow("text")""", UNBOUNDED),
    Attack("a long list of all rows of an Arrow file", """"a.arrow", shared_arrow("list")""", UNBOUNDED),
    Attack("lines without end, packed by zstd", """"a.jsonl.zst", zstd(b"[" * (MOST_LINE + 2))""", UNBOUNDED),
    Attack("rows of a Parquet file without end", """"a.parquet", empty_rows(MOST_ROWS + 1)""", UNBOUNDED),
    Attack("a long value of all rows of a Parquet file", """"a.parquet", shared("rows")""", UNBOUNDED),
    Attack("a long value of all items of a row of a Parquet file", """"a.parquet", shared("items")""", UNBOUNDED),
    Attack(
        "lines without end, packed",
        """"a.jsonl.gz", gzip.compress((b" " * 9999 + b"\\n") * (1 + MOST_TEXT // 10_000), 1)""",
        UNBOUNDED,
    ),
    Attack("a value of a Parquet file without end", """"a.parquet", long_value(MOST_BYTES + 1)""", UNBOUNDED),
]

SETTINGS = [
    Attack(
        "lists of aliases that multiply",
        """"a0: &a0 [x]\\n" + "".join(f"a{n}: &a{n} [{', '.join(9 * ['*a%d' % (n - 1)])}]\\n" for n in range(1, 30))""",
        UNNAMED,
    ),
    Attack(
        "mappings of aliases that multiply",
        """"a0: &a0 {x: 1}\\n" + "".join(f"a{n}: &a{n} {{b: *a{n - 1}, c: *a{n - 1}}}\\n" for n in range(1, 60))""",
        UNNAMED,
    ),
    Attack(
        "merged mappings that multiply",
        """"a0: &a0 {x: 1}\\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\\n" for n in range(1, 60))""",
        UNNAMED,
    ),
    Attack("a list that holds itself", """'a: &a [*a]'""", UNNAMED),
    Attack("lists beyond any stack", """'a: ' + '[' * 5000""", UNNAMED),
    Attack("mappings beyond any stack", """'{a: ' * 5000""", UNNAMED),
    Attack("a number of thousands of digits", """'a: ' + '9' * 5000""", UNNAMED),
    Attack("a command", """'a: !!python/object/apply:os.system [touch marker]'""", UNNAMED),
    Attack("a process", """'a: !!python/object/new:subprocess.Popen [[touch, marker]]'""", UNNAMED),
    Attack("a module", """'a: !!python/module:antigravity'""", UNNAMED),
    Attack("a function", """'a: !!python/name:os.system'""", UNNAMED),
    Attack("a key twice", """'{a: 1, a: 2}'""", UNNAMED),
    Attack("an alias of nothing", """'a: *b'""", UNNAMED),
    Attack("two documents", """'a: 1\\n---\\nb: 2'""", UNNAMED),
    Attack("control characters", """'a: \\0'""", UNNAMED),
]

WHOLE = {
    "config.json": b'{"architectures": ["OwnForCausalLM"]}',
    "model.safetensors": (2).to_bytes(8, "little") + b"{}",
    "tokenizer.json": b"{}",
}
"""Files of a folder in which nothing is wrong, as far as its model is not loaded."""


def header(text: bytes) -> bytes:
    """A file of safetensors without any tensor's bytes."""
    return len(text).to_bytes(8, "little") + text


INDEX = "model.safetensors.index.json"
MODELS = [
    Attack("a configuration beyond a decoder's stack", """{"config.json": b"[" * 100_000}""", UNNAMED),
    Attack("a configuration that is a list", """{"config.json": b"[]"}""", UNNAMED),
    Attack("a configuration that is no text", """{"config.json": b"\\xff"}""", UNNAMED),
    Attack("a configuration with a long number", """{"config.json": b'{"a": ' + b"9" * 5000 + b"}"}""", UNNAMED),
    Attack("a number of architectures", """{"config.json": b'{"architectures": 3}'}""", UNNAMED),
    Attack("an adapter beyond a decoder's stack", """{"adapter_config.json": b"[" * 100_000}""", UNNAMED),
    Attack("a header longer than any file", """{"model.safetensors": (1 << 62).to_bytes(8, "little")}""", UNNAMED),
    Attack("a header beyond a decoder's stack", """{"model.safetensors": header(b'{"a":' * 100_000)}""", UNNAMED),
    Attack("a header that is a list", """{"model.safetensors": header(b"[]")}""", UNNAMED),
    Attack("places that are text", """{"model.safetensors": header(b'{"a": {"data_offsets": [0, "x"]}}')}""", UNNAMED),
    Attack("places without end", """{"model.safetensors": header(b'{"a": {"data_offsets": [0, 1e999]}}')}""", UNNAMED),
    Attack("no places", """{"model.safetensors": header(b'{"a": {"data_offsets": []}}')}""", UNNAMED),
    Attack("an index beyond a decoder's stack", """{INDEX: b"[" * 100_000}""", UNNAMED),
    Attack("an index of numbers", """{INDEX: b'{"weight_map": {"a": 7}}'}""", UNNAMED),
    Attack("an index that leads out", """{INDEX: b'{"weight_map": {"a": "../model.safetensors"}}'}""", UNNAMED),
    Attack("an index of the machine's files", """{INDEX: b'{"weight_map": {"a": "/etc/passwd"}}'}""", UNNAMED),
    Attack("an index of the folder above", """{INDEX: b'{"weight_map": {"a": ".."}}'}""", UNNAMED),
]

FOLDERS = [
    Attack("a task's settings beyond any stack", """{"task.toml": b"a = " + b"[" * 5000}""", UNNAMED),
    Attack("a task's settings that are no text", """{"task.toml": b"\\xff"}""", UNNAMED),
    Attack("a task's settings with a long number", """{"task.toml": b"a = " + b"9" * 5000}""", UNNAMED),
    Attack("another task's settings beyond any stack", """{"task.yaml": b"a: " + b"[" * 5000}""", UNNAMED),
    Attack("another task's settings with a long number", """{"task.yaml": b"a: " + b"9" * 5000}""", UNNAMED),
    Attack("another task's settings with no date", """{"task.yaml": b"a: 2024-99-99"}""", UNNAMED),
    Attack("a task's settings that hold themselves", """{"task.yaml": b"&a [*a]"}""", UNNAMED),
    Attack("a task's settings that run", """{"task.yaml": b"a: !!python/object/apply:os.system [true]"}""", UNNAMED),
    Attack("a corpus beyond a decoder's stack", """{"corpus.jsonl": b'{"contents":' * 5000}""", UNNAMED),
    Attack("a corpus of half characters", """{"corpus.jsonl": b'{"contents": "\\\\ud800"}'}""", UNNAMED),
    Attack("an index beyond a decoder's stack", """{"manifest.json": b"[" * 100_000}""", UNNAMED),
    Attack("an index that is a list", """{"manifest.json": b"[]"}""", UNNAMED),
]

PICKLES = attacks(
    RUN,
    [
        *("os system", "posix system", "subprocess call", "builtins eval", "builtins exec", "builtins getattr"),
        *("builtins __import__", "importlib import_module", "runpy run_path", "pickle loads", "ctypes CDLL"),
        *("torch load", "torch hub.load", "torch serialization.load", "torch.serialization load", "numpy load"),
        *("torch.serialization os.system", "torch.serialization _get_layout.__globals__", "functools partial"),
        *("torch.distributed.checkpoint.metadata os.system", "torch.distributed.checkpoint.planner SavePlan.__init__"),
        *("pathlib PosixPath.touch", "pathlib os.system", "collections OrderedDict.fromkeys", "codecs decode"),
        *("operator attrgetter", "yaml unsafe_load", "agentrl.common.imports load", "shutil rmtree", "_io open"),
    ],
)
