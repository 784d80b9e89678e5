"""The store gives back what it was given, bit for bit, and survives being killed at any byte."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from agentrl.errors import InvalidInput, StoreError, UnknownName
from agentrl.sessions.store.query import Between, Contains
from agentrl.sessions.store.search import search
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.writing import Saving, SessionGrowth
from agentrl.sessions.tree import tree
from agentrl.types import FinishReason as Finish
from agentrl.types import FunctionCall, Message, Sampling, Session, Status, Task, ToolCall, Turn, VersionSpan
from tests.sessions.forests import sessions


def small(id_: str = "s", nodes: int = 2, **fields: object) -> Session:
    session = Session(id_, Task(id="t", data={"q": 1}), **fields)  # type: ignore[arg-type]
    parent = None
    for number in range(nodes):
        parent = tree.add(session, parent, Message(role="user", content=f"m{number}"), [number, 7]).id
    return session


def turn(session: Session) -> None:
    drawn = Turn((5, 6), (-0.1, -1 / 3), (VersionSpan(2, 0, 2),), Finish.STOP, 6)
    tree.add_turn(session, len(session.nodes) - 1, [9], drawn, Sampling(), Message(role="assistant", content="a"))


@given(grown=sessions())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_what_is_loaded_is_what_was_saved_to_the_last_bit(grown: Session, tmp_path: Path) -> None:
    grown.reward, grown.error, grown.status = 0.1 + 0.2, "why", Status.TRUNCATED
    grown.counters, grown.timings = {"turns": 3}, {"generate": 1 / 3}
    with Store(tmp_path / "s.db") as store:
        store.save(grown, replace=True)
        assert store.load(grown.id) == grown


@pytest.mark.slow
@given(grown=sessions())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_appending_node_by_node_is_the_same_as_saving_at_once(grown: Session, tmp_path: Path) -> None:
    nodes, grown.nodes = grown.nodes, []
    with Store(tmp_path / "s.db") as store:
        store.save(grown, replace=True)
        for node in nodes:
            grown.nodes.append(node)
            store.append(grown, [node])
        assert store.load(grown.id) == grown


def test_sessions_that_are_added_to_together_are_stored_as_one_after_the_other(tmp_path: Path) -> None:
    """Rows of a commit are written by statements of many rows; 350 nodes fill several of them."""
    grown = [small(f"s{number}", nodes) for number, nodes in enumerate((300, 1, 7, 0, 42))]
    grown[1].status, grown[2].counters = Status.TRUNCATED, {"turns": 3}
    with Store(tmp_path / "a.db") as together, Store(tmp_path / "b.db") as single:
        for session in grown:
            for store in (together, single):
                store.save(Session(session.id, session.task))
            single.append(session, session.nodes, session.id.encode())
        halves = [
            SessionGrowth.of(one, one.nodes[half], one.id.encode())
            for half in (slice(3), slice(3, None))
            for one in grown
        ]
        together.append_all(halves)
        assert list(together.sessions()) == list(single.sessions()) == grown
        assert together.find().rows == single.find().rows
        assert [together.state(one.id) for one in grown] == [single.state(one.id) for one in grown]
        Store(together.path).delete("s2")
        with pytest.raises(StoreError, match="'s2' was removed"):
            together.append_all([SessionGrowth.of(one, ()) for one in grown])
        assert together.load("s0") == grown[0]


def test_saving_again_writes_the_task_where_it_changed_and_only_there(tmp_path: Path) -> None:
    session = small()
    with Store(tmp_path / "s.db") as store, sqlite3.connect(store.path) as other:
        store.save(session)
        other.execute("CREATE TRIGGER refused BEFORE UPDATE ON tasks BEGIN SELECT RAISE(ABORT, 'written'); END")
        other.execute("CREATE TRIGGER kept BEFORE DELETE ON tasks BEGIN SELECT RAISE(ABORT, 'written'); END")
        other.commit()
        store.save(session)
        other.execute("DROP TRIGGER refused")
        other.commit()
        session.task = Task(id="t", data={"q": 2})
        store.save(session)
        assert store.load("s").task == session.task


def test_saving_again_adds_what_is_new_and_updates_rewards_and_head(tmp_path: Path) -> None:
    session = small()
    with Store(tmp_path / "s.db") as store:
        store.save(session)
        turn(session)
        session.nodes[0].reward, session.status, session.reward = 0.5, Status.COMPLETED, 1.0
        store.save(session)
        store.save(session)
        assert store.load("s") == session


def test_stored_tokens_are_never_rewritten(tmp_path: Path) -> None:
    session = small()
    with Store(tmp_path / "s.db") as store:
        store.save(session)
        with pytest.raises(StoreError, match="node 1 is stored with other tokens"):
            store.save(_altered())
        with pytest.raises(StoreError, match="stored with 2 nodes"):
            store.save(small(nodes=1))
        with pytest.raises(StoreError):
            store.append(session, [session.nodes[1]])
        assert store.load("s") == session
    raw = sqlite3.connect(tmp_path / "s.db")
    with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
        raw.execute("UPDATE nodes SET token_ids = x'00'")


def _altered() -> Session:
    session = small()
    session.nodes[1].token_ids = [1, 8]
    return session


def test_a_session_generated_again_replaces_the_old_one_only_with_replace(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.save(small(nodes=3))
        store.save(_altered(), replace=True)
        assert store.load("s") == _altered()
        store.delete("s")
        assert store.ids() == []
        with pytest.raises(InvalidInput, match="session_id='s'"):
            store.load("s")


def test_sessions_are_found_by_group_status_and_step(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        for group in "ab":
            for step in (0, 1):
                for status in (Status.COMPLETED, Status.INFRA_ERROR):
                    id_ = f"{group}{step}{status}"
                    store.save(small(id_, group=group, status=status, step=step))
        assert len(list(store.sessions())) == 8
        assert {s.group for s in store.sessions(group="b")} == {"b"}
        found = list(store.sessions(group="a", step=1, status=Status.INFRA_ERROR))
        assert [s.id for s in found] == ["a1infra_error"]
        assert list(store.sessions(step=9)) == []


@pytest.mark.slow
def test_many_threads_write_and_read_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:

        def work(number: int) -> None:
            session = small(f"s{number}")
            store.save(session)
            for _ in range(10):
                turn(session)
                store.append(session, [session.nodes[-1]])
                assert store.load(session.id) == session

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(24)))
        assert len(store.ids()) == 24


def test_two_stores_on_one_file_see_each_others_sessions(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as one, Store(tmp_path / "s.db") as other:
        one.save(small("a"))
        other.save(small("b"))
        assert one.ids() == other.ids() == ["a", "b"]


@pytest.mark.parametrize("how", ["foreign", "rubbish", "folder"])
def test_a_file_that_is_no_store_of_ours_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s.db"
    if how == "foreign":
        raw = sqlite3.connect(path)
        raw.execute("CREATE TABLE x (y)")
        raw.close()
    elif how == "rubbish":
        path.write_bytes(b"rubbish" * 1000)
    else:
        path.mkdir()
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_what_json_cannot_express_is_refused_by_name_and_nothing_is_stored(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        with pytest.raises(InvalidInput, match="'s'"):
            store.save(small(info={"env": object()}))
        assert store.ids() == []


@pytest.mark.slow
def test_a_log_cut_at_any_byte_of_its_last_record_loses_that_record_only(tmp_path: Path) -> None:
    """What kill -9 (or a torn write) can leave behind: prefixes of the write-ahead log, around each frame's borders."""
    path, log = tmp_path / "s.db", tmp_path / "s.db-wal"
    session = small(nodes=2)
    store = Store(path)
    store.save(session)
    before, whole = log.stat().st_size, store.load("s")
    turn(session)
    store.append(session, [session.nodes[-1]])
    after = log.stat().st_size
    database, written = path.read_bytes(), log.read_bytes()
    assert before < after == len(written)
    copy = tmp_path / "copy"
    for cut in range(before, after + 1):
        if min((cut - 32) % 4120, -(cut - 32) % 4120) > 30 and cut % 97:
            continue
        copy.mkdir()
        (copy / "s.db").write_bytes(database)
        (copy / "s.db-wal").write_bytes(written[:cut])
        with Store(copy / "s.db") as again:
            assert again.load("s") == (session if cut == after else whole), f"cut at byte {cut}"
            if cut % 970 == 0:
                again.append(session, [session.nodes[-1]]) if cut != after else None
                assert again.load("s") == session
        shutil.rmtree(copy)
    store.close()


@pytest.mark.slow
def test_a_process_killed_while_writing_leaves_every_finished_append(tmp_path: Path) -> None:
    """kill -9 in the middle of a stream of appends: what was reported done is there, whole, and in order."""
    script = textwrap.dedent(
        f"""
        from agentrl.sessions.store.store import Store
        from tests.sessions.test_store import small, turn
        store, session = Store({str(tmp_path / "s.db")!r}), small()
        store.save(session)
        while True:
            turn(session)
            store.append(session, [session.nodes[-1]])
            print(len(session.nodes), flush=True)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    reported = 0
    for line in child.stdout:
        reported = int(line)
        if reported >= 200:
            os.kill(child.pid, signal.SIGKILL)
            break
    reported = max([reported, *(int(line) for line in child.stdout if line.endswith("\n"))])
    child.wait(30)
    with Store(tmp_path / "s.db") as store:
        session = store.load("s")
        tree.check(session)
        assert len(session.nodes) >= reported
        assert [node.token_ids for node in session.nodes[2:]] == [[9, 5, 6]] * (len(session.nodes) - 2)


def test_an_attachment_is_stored_once_and_goes_with_the_last_node_that_has_it(tmp_path: Path) -> None:
    data = {"routed_experts": bytes((1, 2, 2, 0)) + bytes(4)}
    with Store(tmp_path / "s.db") as store:
        for name in "ab":
            session = Session(name, Task(id="t"))
            tree.add(session, None, Message(role="user", content="x"), [1, 2], attached=data)
            store.save(session)
        db = sqlite3.connect(tmp_path / "s.db")
        assert db.execute("SELECT count(*), max(uses) FROM blobs").fetchone() == (1, 2)
        store.delete("a")
        assert store.load("b").nodes[0].attachments == data
        with pytest.raises(sqlite3.IntegrityError, match="never rewritten"):
            db.execute("UPDATE blobs SET data = x'00'")
        db.execute("DROP TRIGGER blobs_are_final")
        db.execute("UPDATE blobs SET data = x'00'")
        db.commit()
        with pytest.raises(StoreError, match="does not match its digest"):
            store.load("b")
        store.delete("b")
        assert db.execute("SELECT count(*) FROM blobs").fetchone() == (0,)
        db.close()


def test_a_summary_follows_a_session_turn_by_turn_and_an_append_costs_no_look_at_earlier_nodes(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        session = small(phase="train", step=4, started=10.0, group="g", environment="shop")
        store.save(session)
        turn(session)
        session.nodes[-1].policy = "main"
        store.append(session, session.nodes[2:])
        (row,) = store.find({"status": Status.OPEN}).rows
        assert (row.turns, row.tokens, row.sampled_tokens, row.trained_tokens, row.branches) == (1, 7, 2, 2, 1)
        assert (row.version_min, row.version_max, row.agents, row.nodes) == (2, 2, ("agent",), 3)
        assert (row.score, row.ended, row.environment) == (None, None, "shop")
        session.status, session.error, session.ended = Status.AGENT_ERROR, "it was wrong", 12.5
        session.reward, session.rewards = 0.5, {"solved": 1.0}
        store.save(session)
        (row,) = store.find({"status": Status.AGENT_ERROR, "agent": "agent", "reward/solved": 1.0}).rows
        assert (row.score, row.blame, row.duration, row.error) == (0.5, "agent", 2.5, "it was wrong")
        with pytest.raises(StoreError, match="stored with 3 nodes"):
            store.append(session, [session.nodes[1]])


@pytest.mark.parametrize("sort", [None, "score", "reward/solved", "group"])
@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_any_size_are_the_sorted_whole_and_hold_each_session_once(
    tmp_path: Path, sort: str | None, descending: bool
) -> None:
    with Store(tmp_path / "s.db") as store:
        for number in range(23):
            ended = {"status": Status.COMPLETED, "reward": number % 4 / 4, "rewards": {"solved": number % 3}}
            store.save(small(f"s{number}", 1, group=f"g{number % 5}", **(ended if number % 6 else {})))
        whole = store.find(sort=sort, descending=descending).rows
        assert len(whole) == 23
        if sort == "score":
            scores = [row.score for row in whole if row.score is not None]
            assert scores == sorted(scores, reverse=descending)
            assert [row.score for row in whole[len(scores) :]] == [None] * 4
        rows, after = [], None
        while rows == [] or after is not None:
            page = store.find(sort=sort, descending=descending, limit=4, after=after)
            rows, after = rows + page.rows, page.next
        assert rows == whole
        assert store.counts("group")["g2"] == 5
        assert store.counts(filters={"score": Between(low=0.5)}) == {"completed": 9}
        assert len(store.find({"group": ["g1", "g2"], "id": Contains("S1")}).rows) == 5
    for wrong in ({"filters": {"scores": 1}}, {"limit": 0}, {"after": "x"}, {"sort": "reward/"}):
        with Store(tmp_path / "s.db") as store, pytest.raises((InvalidInput, UnknownName)):
            store.find(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_another_process_reads_what_was_appended_while_the_first_one_writes(tmp_path: Path) -> None:
    script = f"""
from agentrl.sessions.store.query import Between, Contains
from agentrl.sessions.store.store import Store
with Store({str(tmp_path / "s b.db")!r}, read_only=True) as store:
    print([row.turns for row in store.find().rows], len(store.load("s").nodes), flush=True)
    try:
        store.delete("s")
    except Exception as error:
        print(type(error).__name__)
"""
    with Store(tmp_path / "s b.db") as store:
        session = small()
        store.save(session)
        turn(session)
        store.append(session, session.nodes[2:])
        read = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert read.stdout.split("\n")[:2] == ["[1] 3", "StoreError"]
    with pytest.raises(StoreError, match=r"none\.db"):
        Store(tmp_path / "none.db", read_only=True)


def calling(id_: str, *tools: str) -> Session:
    """A session whose one turn calls these tools."""
    session = small(id_, 1)
    calls = [ToolCall(id=str(n), function=FunctionCall(name=name, arguments="{}")) for n, name in enumerate(tools)]
    tree.add(session, 0, Message(role="assistant", content='"tool_calls": [1', tool_calls=calls or None), [3])
    return session


ODD_NAME = '"\\ \x01%' + "n" * 300


def test_sessions_are_found_by_the_tools_that_they_called(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.save(calling("both", "look", "take", "look"))
        store.save(calling("look", "look"))
        store.save(calling("none"))
        store.save(calling("odd", ODD_NAME))
        assert store.ids(tool="look") == ["both", "look"]
        assert store.ids(tool=["take", "drop"]) == ["both"]
        assert store.ids(tool=Contains("nnn")) == ["odd"]
        assert store.counts("id", {"tool": "take", "status": Status.OPEN}) == {"both": 1}
        store.delete("both")
        store.save(calling("after"))
        assert store.ids(tool="take") == []


@pytest.mark.slow
def test_a_store_that_did_not_keep_which_tools_were_called_does_so_once_a_run_goes_on_with_it(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.save(calling("before", "look"))
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        db.executescript("DROP TABLE calls; DROP TRIGGER calls_added; DROP TRIGGER calls_removed")
    with Store(tmp_path / "s.db", read_only=True) as store:
        assert store.load("before").nodes
        with pytest.raises(StoreError, match="before stores kept which tools were called; --grep"):
            store.find({"tool": "look"})
    with Store(tmp_path / "s.db") as store:
        store.save(calling("now", "look"))
        assert store.ids(tool="look") == ["before", "now"]


def test_finding_a_session_by_its_id_reads_no_more_rows_where_there_are_more_sessions(tmp_path: Path) -> None:
    """A viewer does so for each page of a session, of which a store may have a million."""
    steps: dict[str, list[int]] = {}
    for count in (10, 1000):
        with Store(tmp_path / f"{count}.db") as store:
            store.save_all([Saving(small(f"s{number}", 1)) for number in range(count)])
            for id_, wanted in (("s7", "s7"), ("s3", ["s3", "nothere"]), (None, "nothere")):
                taken = [0]

                def count_step(taken: list[int] = taken) -> None:
                    taken[0] += 1

                store._db.set_progress_handler(count_step, 1)
                found = store.find({"id": wanted}, limit=1).rows
                store._db.set_progress_handler(None, 0)
                assert [row.id for row in found] == ([] if id_ is None else [id_])
                steps.setdefault(str(wanted), []).append(taken[0])
    assert all(few == many for few, many in steps.values()), steps


def test_a_filter_may_name_more_values_than_a_statement_has_parameters(tmp_path: Path) -> None:
    """A step's digests are those of all its groups: with 32,767 of them the query was refused."""
    with Store(tmp_path / "s.db") as store:
        store.save_all([Saving(small(f"s{n}", 1, group=f"g{n % 3}", status=list(Status)[n % 2])) for n in range(6)])
        more = [f"other{number}" for number in range(40_000)]
        for name, of in (("id", "s1"), ("group", "g1")):
            assert store.ids(**{name: [*more, of]}) == store.ids(**{name: [of]}) == store.ids(**{name: of})
        assert store.ids(status=[Status.COMPLETED] * 600) == store.ids(status=Status.COMPLETED) != []
        assert store.digests(group=[*more, "g2"]) == store.digests(group="g2") != {}


def test_a_store_in_a_folder_that_can_not_be_written_is_read_without_files_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a disk mounted read-only SQLite could not make its log's files, and no command could read the run."""
    (left := tmp_path / "killed").mkdir()
    with Store(tmp_path / "s.db") as store:
        store.save(small("a"))
        for ending in ("", "-wal"):  # as a killed process leaves them, and a copy that has no index
            shutil.copy(f"{store.path}{ending}", f"{left / 's.db'}{ending}")
    (tmp_path / "s.db-wal").touch()  # as a reader leaves it
    before = set(tmp_path.iterdir())
    monkeypatch.setattr("os.access", lambda *args: False)
    with Store(tmp_path / "s.db", read_only=True) as store:
        assert store.ids() == ["a"]
        assert search(tmp_path / "s.db", "m0").rows
        assert set(tmp_path.iterdir()) == before
    with Store(left / "s.db", read_only=True) as store:
        assert store.load("a").id == "a"
    assert {file.name for file in left.iterdir()} == {"s.db", "s.db-wal"}


def test_a_clock_that_is_set_back_during_a_session_gives_it_no_negative_duration(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.save(small("a", started=7200.0, ended=3600.0))
        assert [row.duration for row in store.summaries()] == [0.0]
