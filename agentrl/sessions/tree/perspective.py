"""Sessions as the run of one of their policies alone would have recorded them.

Where several policies learn in a run, each is trained on the same sessions as if the others were frozen: their turns
are untrained, their agents' rewards are partners'. So credit, staleness, accounts and proofs need not know of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from agentrl.types import MAIN, Group, Node, Session


def group_seen_by(group: Group, policy: str, players: Mapping[str, str]) -> Group:
    """Return a group as a policy's own run would have it.

    Args:
        group: with whole sessions.
        policy: the policy's name; in what is returned it is the main one, and the main one has its name.
        players: the policies of agents, by agent; the main one plays those that are not named. Who spoke goes first:
            where earlier versions play, it differs between groups.
    """
    return replace(group, sessions=[seen_by(session, policy, players) for session in group.sessions])


def seen_by(session: Session, policy: str, players: Mapping[str, str]) -> Session:
    """Return a session as a policy's own run would have it; see `group_seen_by`."""
    names = {policy: MAIN, MAIN: policy} if policy != MAIN else {}

    def seen(node: Node) -> Node:
        name = node.policy and names.get(node.policy, node.policy)
        trainable = node.trainable if node.policy in (None, policy) else [False] * len(node.trainable)
        return replace(node, policy=name, trainable=trainable)

    spoke = dict(players) | {node.agent: node.policy for node in session.nodes if node.sampled and node.policy}
    own = {a: r for a, r in session.agent_rewards.items() if spoke.get(a, MAIN) == policy}
    others = {a: r for a, r in session.agent_rewards.items() if a not in own}
    each = [reward for reward in own.values() if reward is not None]
    return replace(
        session,
        nodes=[seen(node) for node in session.nodes],
        reward=fmean(each) if each else None,
        agent_rewards=own,
        partner_rewards=others | session.partner_rewards,
    )
