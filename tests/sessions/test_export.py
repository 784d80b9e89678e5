"""Exports hold everything, and JSON lines read back into the same sessions."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import MissingExtra
from agentrl.sessions.store.export import to_jsonl, to_parquet
from agentrl.types import Message, Session
from tests.sessions.exported import from_jsonl
from tests.sessions.forests import sessions

FILES = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@given(grown=st.lists(sessions(), max_size=3))
@FILES
def test_json_lines_read_back_into_the_same_sessions(grown: list[Session], tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    assert to_jsonl(grown, path) == len(grown)
    assert list(from_jsonl(path)) == grown
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.jsonl"]


@given(grown=st.lists(sessions(), max_size=3))
@FILES
@pytest.mark.slow
def test_parquet_holds_one_row_for_each_node_with_its_tokens(grown: list[Session], tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "s.parquet"
    nodes = [(session, node) for session in grown for node in session.nodes]
    assert to_parquet(grown, path) == len(nodes)
    rows = pq.read_table(path).to_pylist()
    for row, (session, node) in zip(rows, nodes, strict=True):
        assert (row["session_id"], row["group"], row["id"]) == (session.id, session.group, node.id)
        for name in ("parent", "token_ids", "trainable", "logprobs", "reward", "agent"):
            assert row[name] == getattr(node, name)
        assert dict(row["attachments"]) == node.attachments
        assert Message.model_validate_json(row["message"]) == node.message


def test_an_export_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("old")

    def broken() -> object:
        raise RuntimeError("no more")
        yield

    with pytest.raises(RuntimeError):
        to_jsonl(broken(), path)  # type: ignore[arg-type]
    assert path.read_text() == "old"


@pytest.mark.slow
def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def no_pyarrow(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_pyarrow)
    with pytest.raises(MissingExtra, match="parquet"):
        to_parquet([], tmp_path / "s.parquet")
