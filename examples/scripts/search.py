"""Best-of-n and tree search: sessions that are forked without training, by the calls that training forks with.

    python examples/scripts/search.py env=castle search=tree steps=2

Both generate several continuations of each task and take the best one by its rewards. Best-of-n forks before the first
turn. The tree search goes on from turns that look promising, and from promising turns of what it found there:
`rollout.branch=value` with an estimate, which is yours to write.
"""

import asyncio
import sys

import agentrl
from agentrl.plugins.fork_rule import ForkPoint, Message, Session, alone, branch_nodes

SEARCHES = {
    "best": {"name": "every", "start": 0, "turns": 1000, "continuations": 7},
    "tree": {"name": "value", "estimate": f"{__file__}:progress", "low": 0.01, "high": 1, "nested": True},
}


def progress(point: ForkPoint) -> float:
    """How promising a conversation is: the share of its tool calls that worked, of castles for example."""
    answers = [message.text for message in point.messages if message.role == "tool"]
    return sum(not text.startswith("error") for text in answers) / max(len(answers), 1)


def best(session: Session) -> tuple[float, list[Message]]:
    """The best path of a session, and what it earned."""
    paths = [alone(session, branch_nodes(session, branch)) for branch in session.branches] or [session]
    scores = [
        (sum(node.reward or 0.0 for node in path.nodes) + (branch.reward or 0.0), path.messages)
        for path, branch in zip(paths, session.branches or [session], strict=True)
    ]
    return max(scores, key=lambda found: found[0])


async def main(env: str, search: str = "best", **settings: object) -> list[float]:
    """Search a solution of each task; returns what the best ones earned."""
    chosen = {f"rollout.branch.{key}": value for key, value in SEARCHES[search].items()}
    found = []
    async with agentrl.rollouts(env, **{"rollout.group_size": 2, **chosen, **settings}) as run:
        async for group in run:
            score, messages = max((best(session) for session in group.scored), key=lambda found: found[0])
            count = sum(max(len(session.branches), 1) for session in group.scored)
            print(f"{group.task.id}: {score:.3f}, the best of {count}: {messages[-1].text!r}")
            found.append(score)
    return found


if __name__ == "__main__":
    given = agentrl.parse_words(sys.argv[1:])
    asyncio.run(main(given.pop("env", "calculator"), given.pop("search", "best"), **given))
