"""What a teacher reads of a session: the turns that it teaches, and a prompt that may say more than the student's.

Both are copies of sessions with the same ids of sessions and nodes, so that who reads sessions, by forests or by paths,
needs to know of neither. The tokens of turns stay as they were sampled; those of the prompt before a path's first turn
are rendered again with the privileged text in it, so that only positions move. A prompt that the renderer does not
write as it stands in the session (a program's own format) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.errors import InvalidInput
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree import tree
from agentrl.train.algorithms import Algorithm
from agentrl.types import Group, Message, Node, Part, Session


def by_teacher(algorithm: Algorithm, groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each teacher, with what it teaches of their sessions; a session of one teacher is as it was."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        names: dict[str, list[Session]] = {}
        for session in group.sessions:
            for name, view in _views(algorithm, session):
                names.setdefault(name, []).append(view)
        for name, sessions in names.items():
            found.setdefault(name, []).append(replace(group, sessions=sessions))
    return found


def _views(algorithm: Algorithm, session: Session) -> Iterator[tuple[str, Session]]:
    usual, others = algorithm.teacher_of(session), algorithm.teachers_by_turn(session)
    if not others:
        yield usual, session
        return
    sampled = [node.id for node in session.nodes if node.sampled]
    for name in dict.fromkeys(others.get(node, usual) for node in sampled):
        left_out = {node for node in sampled if others.get(node, usual) != name}
        nodes = [_untrained(node) if node.id in left_out else node for node in session.nodes]
        yield name, replace(session, nodes=nodes)


def _untrained(node: Node) -> Node:
    return replace(node, trainable=[False] * len(node.token_ids))


class Privileged:
    """Adds text to the prompts that teachers read.

    Args:
        renderer: the run's, in which sessions were written.
        field: the field of the task that holds the text.
        text: how it stands behind a message, as a paragraph of its own, with `{}` in its place.
    """

    def __init__(self, renderer: Renderer, field: str, text: str) -> None:
        self._renderer, self._field, self._text = renderer, field, text

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the text in every prompt.

        Raises:
            InvalidInput: a task has no such field, or a prompt can't be rendered again.
        """
        return [replace(group, sessions=[self._session(session) for session in group.sessions]) for group in groups]

    def _session(self, session: Session) -> Session:
        data = session.task.data
        if data.get(self._field) is None:
            known = ", ".join(sorted(data)) or "none"
            raise InvalidInput(
                f"algo.privileged={self._field}: task {session.task.id!r} has no such field (fields: {known})"
            )
        said = "\n\n" + self._text.replace("{}", str(data[self._field]))
        changed: dict[int, Node] = {}
        for first in _first_turns(session):
            prompt = tree.path(session, first)[:-1]
            for node, ids in zip(prompt, self._rendered(session, prompt, said), strict=True):
                changed[node.id] = _with_tokens(node, ids)
        return replace(session, nodes=[changed.get(node.id, node) for node in session.nodes])

    def _rendered(self, session: Session, prompt: Sequence[Node], said: str) -> list[list[int]]:
        """The tokens of each of a prompt's messages, the last one of a user's with the text behind it."""
        if not prompt:
            raise InvalidInput(
                f"algo.privileged: session {session.id!r} begins with a turn, and has no prompt to add to"
            )
        messages, tools = [node.message for node in prompt], prompt[0].tools
        if self._renderer.render(messages, tools=tools) != [node.token_ids for node in prompt]:
            raise InvalidInput(
                f"algo.privileged: the prompt of session {session.id!r} is not what {self._renderer.name} writes for "
                "its messages, so that nothing can be added to it"
            )
        place = max((i for i, each in enumerate(messages) if each.role == "user"), default=len(messages) - 1)
        messages[place] = _extended(messages[place], said)
        return self._renderer.render(messages, tools=tools)


def _first_turns(session: Session) -> list[int]:
    """The turns with no turn before them on their path."""
    after: set[int | None] = set()
    found = []
    for node in session.nodes:
        turn = node.message.role == "assistant"
        if turn and node.parent not in after:
            found.append(node.id)
        if turn or node.parent in after:
            after.add(node.id)
    return found


def _extended(message: Message, said: str) -> Message:
    content = message.content
    if content is None or isinstance(content, str):
        return message.model_copy(update={"content": (content or "") + said})
    return message.model_copy(update={"content": [*content, Part(type="text", text=said)]})


def _with_tokens(node: Node, ids: list[int]) -> Node:
    count = len(ids)
    return replace(node, token_ids=ids, trainable=[False] * count, logprobs=[0.0] * count, attachments={})
