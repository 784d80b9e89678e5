"""A conversation extends one path of a session's tree: messages go in, generated turns come out.

It keeps the path's token ids, so a turn costs what is new in it: rendering the new messages, the engine's work, and
parsing the reply. What an engine received or generated is never rendered or tokenised again, unless
`TurnGenerator.strip_reasoning` says so: then a user's message begins a branch without the reasoning before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import TokenBudgetExceeded, TreeError
from agentrl.sessions.renderers.base import UNWRITTEN_NAMES, RenderedMessage, ToolSchema, drops_name, parse
from agentrl.sessions.renderers.strip import count_stripped
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.turn_generator import Budget, GeneratedTurn, Prompt, TurnGenerator
from agentrl.types import AGENT, Message, Node, Sampling, Session, Turn, as_messages

__all__ = ["Conversation", "TokenBudgetExceeded"]

LARGE_TURN = 4096
"""Tokens from which on a turn is read in a thread: up to 20 ms of work."""


class Conversation:
    """One path of a session, from its root to `head`.

    Args:
        session: the tree to extend.
        generator: renders messages and generates turns.
        tools: what the model may call; a path that already exists has its root's.
        agent: the agent that the path belongs to.
        head: the node to continue from; None begins a new root.
        stop: strings that end a turn. With any, turns are plain text (nothing in them is parsed), and `insert` goes on
            with the same assistant message; see `Env.stop_strings`.

    Attributes:
        attached: attachments of the turns that are generated from now on, besides an engine's.
    """

    def __init__(
        self,
        session: Session,
        generator: TurnGenerator,
        *,
        tools: Sequence[ToolSchema] = (),
        agent: str = AGENT,
        head: int | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        self.session, self.generator, self.agent, self.stop = session, generator, agent, tuple(stop)
        self.head = None if head is None else tree.get(session, head)
        nodes = tree.path(session, head)
        self.tools: tuple[ToolSchema, ...] = tuple(nodes[0].tools if nodes else tools)
        self._ids = tree.path_ids(session, head)
        self._messages = [node.message for node in nodes]
        self._size, self._counted = 0, 0
        self.attached: Mapping[str, bytes] = {}
        self._ahead = 0

    @property
    def token_ids(self) -> list[int]:
        """The path's tokens so far (a copy)."""
        return list(self._ids)

    @property
    def messages(self) -> list[Message]:
        """The path's messages so far (a copy of the list)."""
        return list(self._messages)

    def require_head(self) -> Node:
        """Return the path's last node; TreeError where there is none yet."""
        if self.head is None:
            raise TreeError(f"the conversation of session {self.session.id} has no message yet")
        return self.head

    @property
    def budget(self) -> Budget:
        """The token budget that leaves least."""
        return self.generator.budget(len(self._ids), self._session_size())

    def add(self, messages: str | Message | Mapping[str, Any] | Iterable[Any]) -> list[Node]:
        """Append messages of the environment or the user; an assistant message among them is never trained on.

        Raises:
            RenderError: the format has no place for one of the messages.
            TreeError: the head was cut by a length limit, and nothing can follow it.
        """
        new = as_messages(messages)
        if any(drops_name(self.generator.renderer, message) for message in new):
            self.session.count(UNWRITTEN_NAMES)
        branch = self.generator.branch(self.session, self._parent, new)
        if branch is not None:
            self._go_to(branch.parent)
            for copy in branch.copies:
                self._append(copy)
            count_stripped(self.session, branch)
        return [self._append(message) for message in self.generator.render(new, tools=self.tools, after=self.head)]

    def demonstrate(self, message: Message) -> Node:
        """Append an expert's assistant message: its turn is trained on, without having been sampled."""
        opening = self._opening()
        turn = self._encode(message.text) if self.stop else self.generator.renderer.turn(message)
        trainable = [False] * len(opening) + [self.generator.trained] * len(turn)
        return self._append(RenderedMessage(message, [*opening, *turn]), trainable)

    async def generate(self, sampling: Sampling, deadline: float, *, seed: int | None = None) -> Node:
        """Generate the next turn, parse it, and append it.

        Args:
            sampling: the parameters; `max_new_tokens` is limited to what the budgets allow.
            deadline: in seconds of `time.monotonic()`.
            seed: this turn's, in place of the one in `sampling`.

        Raises:
            TokenBudgetExceeded: the budgets are used up; nothing was appended.
            DeadlineExceeded, EngineError: see `generation.generate`; nothing was appended.
        """
        generator = self.generator
        generator.require_engine()
        if not self._ids:
            raise TreeError("a conversation needs a message before the model can answer")
        opening = self._opening()
        prompt = Prompt(self._parent, (), opening, [*self._ids, *opening])
        budget = generator.budget(len(prompt.token_ids), self._session_size() + prompt.new_tokens)
        sampling = generator.clamp(budget, generator.with_stops(sampling, self.stop, seed))
        sampling = sampling if self.stop else generator.with_calls(sampling, self.tools)
        request = str(len(self.session.nodes) + self._ahead)
        turn = await generator.generate_turn(self.session, prompt, sampling, deadline, request)
        if self.attached:
            turn = replace(turn, attachments={**turn.attachments, **self.attached})
        large = len(turn.token_ids) >= LARGE_TURN
        message = await asyncio.to_thread(self._read, turn) if large else self._read(turn)
        return self._advance(
            generator.add(self.session, self._parent, GeneratedTurn(opening, turn, sampling, message), self.agent)
        )

    def insert(self, text: str) -> Node:
        """Insert text into the assistant message that the head is the end of; the next turn goes on behind it.

        The text is tokenised by itself, untrained, and nothing else is added: no end of turn, no role. Where the model
        ended its turn with an end token, the path continues from a copy of the turn without it (`Node.copied_tokens`),
        as when a client appends to a turn that it sends back.

        Raises:
            TreeError: the head is no assistant's turn, or was cut by a length limit.
        """
        if self.head is None or self.head.message.role != "assistant":
            raise TreeError("text can only be inserted behind an assistant's turn")
        head, kept = self.head, len(self.head.token_ids) - 1
        ended = head.versions and head.token_ids[-1] in self.generator.renderer.stop_token_ids
        if ended and kept > head.versions[0].start:
            self._go_to(head.parent)
            self._append(RenderedMessage(head.message, head.token_ids[:kept], copy_of=head.id, copied_tokens=kept))
        return self._append(RenderedMessage(Message(role="tool", content=text), self._encode(text)))

    def apart(self, ahead: int, total: int) -> Conversation:
        """Return the same path in a copy of the session, for one of several turns that are generated concurrently.

        Nothing that is added to it is in this conversation: `adopt` appends its turn.

        Args:
            ahead: how many of the other turns are adopted before this one.
            total: how many turns there are. Each may use one part in so many of what is left of the session's tokens.
        """
        generator = self.generator
        if generator.session_tokens is not None:
            used = self._session_size()
            generator = replace(generator, session_tokens=used + (generator.session_tokens - used) // total)
        session = replace(self.session, nodes=[*self.session.nodes])
        own = Conversation(session, generator, tools=self.tools, agent=self.agent, head=self._parent, stop=self.stop)
        own.attached, own._ahead = self.attached, ahead
        return own

    def adopt(self, node: Node) -> Node:
        """Append a turn that was generated `apart`, as the session's next node."""
        return self._advance(tree.adopt(self.session, node))

    def restart(self) -> None:
        """Leave the path as it is: what is added next begins another root."""
        self._go_to(None)

    def _opening(self) -> list[int]:
        """The generation prompt; nothing behind inserted text."""
        if self.stop and self.head is not None and self.head.message.role == "tool":
            return []
        return self.generator.renderer.generation_prompt(self.head)

    def _encode(self, text: str) -> list[int]:
        return self.generator.renderer.tokenizer.encode(text)

    def _read(self, turn: Turn) -> Message:
        """A turn's message: parsed, or its text without the end token where there are stop strings."""
        renderer, ids = self.generator.renderer, turn.token_ids
        if not self.stop:
            return parse(renderer, ids, self.tools).message
        if ids and ids[-1] in renderer.stop_token_ids:
            ids = ids[:-1]
        return Message(role="assistant", content=renderer.tokenizer.decode(ids))

    @property
    def _parent(self) -> int | None:
        return None if self.head is None else self.head.id

    def _append(self, message: RenderedMessage, trainable: list[bool] | None = None) -> Node:
        tools = self.tools if self.head is None else ()
        return self._advance(
            tree.add_rendered(self.session, self._parent, message, trainable=trainable, agent=self.agent, tools=tools)
        )

    def _go_to(self, node_id: int | None) -> None:
        path = tree.path(self.session, node_id)
        self.head = path[-1] if path else None
        self._ids = [token for node in path for token in node.token_ids]
        self._messages = [node.message for node in path]

    def _advance(self, node: Node) -> Node:
        self.head = node
        self._ids += node.token_ids
        self._messages.append(node.message)
        return node

    def _session_size(self) -> int:
        """The tree's tokens, each counted once: other conversations may extend the same session."""
        new = self.session.nodes[self._counted :]
        self._size += sum(map(tree.new_tokens, new))
        self._counted += len(new)
        return self._size
