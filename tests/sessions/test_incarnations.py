"""A version and its incarnation name the same weights for good, however often a run loses some."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.stream.unfinished import LeftSessions
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.incarnations import incarnation
from agentrl.train.driver.recorded_steps import losses
from tests.sessions.test_store import small, turn


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=6))
def test_no_two_weights_ever_have_one_name_and_none_has_two(lives: list[tuple[int, int]]) -> None:
    """Each life learns some versions, and loses the latest of them; weights are told apart by their history."""
    lost: list[int] = []
    history: tuple[tuple[int, int], ...] = ()
    names: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    seen: dict[tuple[tuple[int, int], ...], tuple[int, int]] = {}
    for life, (learned, lose) in enumerate(lives):
        for version in range(len(history) + 1):  # those that survived may be generated under again
            weights = history[:version]
            name = version, incarnation(version, lost)
            assert names.setdefault(name, weights) == weights
            assert seen.setdefault(weights, name) == name
        for _ in range(learned):
            history = (*history, (life, len(history)))
            name = len(history), incarnation(len(history), lost)
            assert names.setdefault(name, history) == history
            assert seen.setdefault(history, name) == name
        survived = max(0, len(history) - lose)
        if survived < len(history):
            lost.append(survived)
            history = history[:survived]


def test_turns_of_a_lost_version_and_of_its_successor_are_stored_under_different_names(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        for session, losses_so_far in ((small("before"), ()), (small("after"), (1,)), (small("survivor"), (2,))):
            store.losses = losses_so_far
            store.save(session)
            turn(session)  # under version 2
            store.append(session, session.nodes[-1:])
            assert store.load(session.id) == session, "memory and store differ"
        found = {name: store.load(name).nodes[-1].versions[0].incarnation for name in store.ids()}
    assert found == {"before": 0, "after": 1, "survivor": 0}


def test_weights_are_lost_where_the_store_has_turns_of_a_version_that_is_not_computed_again(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        session = small()
        turn(session)  # under version 2
        store.save(session)
        assert losses(tmp_path, store, {"main": 2}, reproducible=False) == []
        assert losses(tmp_path, store, {"main": 1}, reproducible=True) == []
        assert losses(tmp_path, store, {"main": 1}, reproducible=False) == [1]
        assert losses(tmp_path, store, {"main": 2}, reproducible=False) == [1], "known to the next process, too"


def test_what_several_policies_lost_is_told_by_each_ones_versions(tmp_path: Path) -> None:
    """A schedule gives them different numbers: here `main` had learned three times, and `other` once."""
    survived = {"main": 3, "other": 1}
    with Store(tmp_path / "s.db") as store:
        store.losses = losses(tmp_path, store, survived, reproducible=False)
        assert losses(tmp_path, store, survived, reproducible=True) == [survived]
        for policy in survived:
            session = small(policy, group="g", group_number=0, phase="train")
            turn(session)  # under version 2
            session.nodes[-1].policy = policy
            store.save(session)
        found = {name: store.load(name).nodes[-1].versions[0].incarnation for name in store.ids()}
        assert found == {"main": 0, "other": 1}
        LeftSessions().find(store, 0, survived)
        assert list(store.ids()) == ["main"], "a session by weights that are lost is not gone on with"
    assert [incarnation(2, [survived], policy) for policy in ("main", "other", "averaged")] == [0, 1, 0]
