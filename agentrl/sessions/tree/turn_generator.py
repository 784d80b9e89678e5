"""Generating a session's turns: from messages to a prompt, within the token budgets, to a node of the tree.

`Conversation` and the gateway's exchange both generate through a `TurnGenerator`. They differ in where messages come
from, and in when nodes are added: a conversation adds them at once, the gateway when the client has its reply.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from agentrl.attachments import images, support
from agentrl.errors import RenderError, TokenBudgetExceeded, TreeError, UnlistedTools
from agentrl.sessions.renderers.base import RenderedMessage, Renderer, ToolSchema
from agentrl.sessions.renderers.call_grammar import call_grammar
from agentrl.sessions.renderers.proof.markers import REFUSES_TOOLS
from agentrl.sessions.renderers.strip import StrippedBranch, strip_earlier_reasoning
from agentrl.sessions.tree import trainability, tree
from agentrl.sessions.tree.generation import copy_with, generate, generate_turn
from agentrl.sessions.tree.trainability import Untrainable
from agentrl.types import AGENT, MAIN, Arrival, Chunk, Engine, Message, Node, Placed, Sampling, Session, Turn


@dataclass(slots=True)
class Prompt:
    """The prompt that a turn is generated from.

    Attributes:
        parent: the node that the prompt continues; None begins a new root.
        new: the messages after it, which are not in the tree yet.
        opening: the generation prompt's tokens, and whatever else begins the turn without being sampled.
        token_ids: all of the prompt's tokens, from the root on.
    """

    parent: int | None
    new: Sequence[RenderedMessage]
    opening: list[int]
    token_ids: list[int]

    @property
    def new_tokens(self) -> int:
        """The number of tokens that the prompt adds to the session, without the turn's."""
        return len(self.opening) + sum(message.new_tokens for message in self.new)


@dataclass(slots=True)
class GeneratedTurn:
    """A turn that an engine generated, with what its node needs besides."""

    opening: list[int]
    turn: Turn
    sampling: Sampling
    message: Message
    reply_id: str | None = None
    arrival: Arrival | None = None
    reasoning_tokens: int = 0
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit of tokens: how many it leaves (negative beyond it), what it is called, and how many it counts."""

    left: int
    name: str
    used: int


UNLIMITED = Budget(sys.maxsize, "no limit", 0)
"""The budget of an agent without any limit."""


@dataclass(frozen=True, slots=True)
class TurnGenerator:
    """Generates an agent's turns: a renderer and an engine, and the limits that apply.

    Attributes:
        renderer: turns messages into tokens and back.
        engine: generates; None where only demonstrations are written.
        context_tokens: the longest path, in tokens; None is the engine's own limit.
        session_tokens: all of a session's nodes together; None is no limit.
        strict_calls: whether each tool call has to be of a tool on offer and fit its schema (`renderers.call_grammar`).
        strip_reasoning: whether a user's message begins a branch without the reasoning before it
            (`renderers.strip`); the session counts how many tokens that costs and saves.
        policy: the name of the policy whose engine it is.
        trained: whether that policy's turns may be trained on.
    """

    renderer: Renderer
    engine: Engine | None
    context_tokens: int | None = None
    session_tokens: int | None = None
    strip_reasoning: bool = False
    policy: str = MAIN
    trained: bool = True
    strict_calls: bool = False

    def require_engine(self) -> Engine:
        """The engine.

        Raises:
            TreeError: there is none.
        """
        if self.engine is None:
            raise TreeError("there is no engine: only demonstrations can be added to this conversation")
        return self.engine

    @property
    def max_context(self) -> int | None:
        """The longest path in tokens: `context_tokens` or the engine's own limit, whichever is smaller."""
        own = self.engine.capabilities.max_context if self.engine is not None else None
        return min((limit for limit in (self.context_tokens, own) if limit is not None), default=None)

    # --------------------------------------------------------------------------------------- the prompt

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[RenderedMessage]:
        """The messages with their tokens; arguments and errors as in `Renderer.render`.

        Raises:
            UnlistedTools: tools are on offer that the model would not see (`markers.REFUSES_TOOLS`).
        """
        if tools and (refusal := getattr(self.renderer, REFUSES_TOOLS, "")):
            raise UnlistedTools(f"{self.renderer.name}: {refusal}")
        tokens = self.renderer.render(messages, tools=tools, after=after)
        return [RenderedMessage.of(self.renderer, message, ids) for message, ids in zip(messages, tokens, strict=True)]

    def branch(
        self,
        session: Session,
        parent: int | None,
        messages: Sequence[Message],
        before: Sequence[RenderedMessage] = (),
    ) -> StrippedBranch | None:
        """The branch that `messages` continue instead of the path to `parent`, where earlier reasoning is left out.

        Args:
            session: the tree.
            parent: the last stored node before the messages.
            messages: what follows; a user's message among them leaves out the reasoning before it.
            before: rendered messages between the two, which are not in the tree yet.

        Returns:
            None if the path continues as it is.
        """
        if not self.strip_reasoning or not any(message.role == "user" for message in messages):
            return None
        path = [*tree.path(session, parent), *(message.as_node() for message in before)]
        return strip_earlier_reasoning(self.renderer, path)

    # ------------------------------------------------------------------------------------- the budgets

    def budget(self, path_tokens: int, session_tokens: int) -> Budget:
        """The budget that leaves least, of which `UNLIMITED` leaves most.

        Args:
            path_tokens: the path's tokens so far.
            session_tokens: the session's tokens so far, new ones of the path included.
        """
        found = []
        if self.engine is not None:
            own = self.engine.capabilities.max_context
            found.append(Budget(own - path_tokens, f"the context of {own} tokens", path_tokens))
        if (limit := self.context_tokens) is not None:
            found.append(Budget(limit - path_tokens, f"context_tokens={limit}", path_tokens))
        if (limit := self.session_tokens) is not None:
            found.append(Budget(limit - session_tokens, f"session_tokens={limit}", session_tokens))
        return min(found, key=lambda budget: budget.left, default=UNLIMITED)

    def with_stops(self, sampling: Sampling, strings: Sequence[str] = (), seed: int | None = None) -> Sampling:
        """Add to sampling the renderer's stop tokens, more stop strings, and a seed where one is given."""
        stops = tuple(dict.fromkeys((*sampling.stop_token_ids, *self.renderer.stop_token_ids)))
        seed = sampling.seed if seed is None else seed
        return copy_with(sampling, stop_token_ids=stops, stop=(*sampling.stop, *strings), seed=seed)

    def with_calls(self, sampling: Sampling, tools: Sequence[ToolSchema]) -> Sampling:
        """Add to sampling the grammar of these tools' calls, where they have to fit one and the engine can keep to it.

        Raises:
            RenderError: the format has no such grammar.
        """
        if not (self.strict_calls and tools and self.require_engine().capabilities.lark) or sampling.grammar:
            return sampling
        return replace(sampling, lark=call_grammar(self.renderer, tools))

    def clamp(self, budget: Budget, sampling: Sampling) -> Sampling:
        """Limit `max_new_tokens` to the budgets, of which the given one leaves least.

        Raises:
            TokenBudgetExceeded: it is used up.
        """
        if budget.left < 1:
            raise TokenBudgetExceeded(f"{budget.name} is used up: {budget.used} tokens leave no room for a turn")
        return sampling if sampling.max_new_tokens <= budget.left else replace(sampling, max_new_tokens=budget.left)

    # ---------------------------------------------------------------------------------------- the turn

    def generate(
        self, session: Session, prompt: Prompt, sampling: Sampling, deadline: float, request: str
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield a turn's chunks, then the whole `Turn`; see `generation.generate`.

        Args:
            session: the session that the prompt continues.
            prompt: all that comes before the turn.
            sampling: with stop tokens (`with_stops`), within the budgets (`within`).
            deadline: in seconds of `time.monotonic()`.
            request: the request's name within the session.

        Raises:
            DeadlineExceeded: the deadline passed first.
            EngineError: the engine failed, or broke its contract.
        """
        return generate(
            *self._request(session, prompt, sampling, request), deadline, self._list_images(session, prompt)
        )

    async def generate_turn(
        self, session: Session, prompt: Prompt, sampling: Sampling, deadline: float, request: str
    ) -> Turn:
        """The turn that `generate` ends in; arguments and errors as there."""
        seen = self._list_images(session, prompt)
        return await generate_turn(*self._request(session, prompt, sampling, request), deadline, seen)

    def _request(
        self, session: Session, prompt: Prompt, sampling: Sampling, request: str
    ) -> tuple[Engine, str, list[int], Sampling]:
        engine = self.require_engine()
        kinds = engine.capabilities.attachments - {support.NAME}
        record = tree.find_unrecorded(session, prompt.parent, kinds) if kinds else ()
        recorded = support.NAME in engine.capabilities.attachments and not sampling.full_support
        if recorded or sampling.grammar:  # which a continued turn has to follow from its first token on
            record = (*record, (support.NAME, len(prompt.token_ids)))
        if record:
            sampling = replace(sampling, record=record)
        return engine, f"{session.id}/{request}", prompt.token_ids, sampling

    def _list_images(self, session: Session, prompt: Prompt) -> list[Placed]:
        """The images of a prompt.

        Raises:
            RenderError: the engine takes none.
        """
        if getattr(self.renderer.tokenizer, "images", None) is None:
            return []
        found: list[Placed] = []
        at = 0
        nodes: list[Node | RenderedMessage] = [*tree.path(session, prompt.parent), *prompt.new]
        for each in nodes:
            if images.NAME in each.attachments:
                found.append((at, images.NAME, each.attachments[images.NAME]))
            at += len(each.token_ids)
        engine = self.require_engine().capabilities
        if found and images.NAME not in engine.inputs:
            raise RenderError(f"the prompt has images, which engine={engine.name} does not take; engine=local does")
        return found

    def add(self, session: Session, parent: int | None, generated: GeneratedTurn, agent: str = AGENT) -> Node:
        """Append a generated turn to the tree.

        What can't be trained of a turn that was not sampled from the whole vocabulary is counted, with one warning.
        """
        generated.node = tree.add_turn(
            session,
            parent,
            generated.opening,
            generated.turn,
            generated.sampling,
            generated.message,
            agent=agent,
            policy=self.policy,
            trained=self.trained,
            reply_id=generated.reply_id,
        )
        generated.node.arrival = generated.arrival
        if self.trained and not generated.sampling.full_support:
            count_untrainable(session, generated.node)
        return generated.node


def count_untrainable(session: Session, node: Node) -> None:
    """Count a turn's untrainable tokens by their reasons, and warn once; of temperature 0 those of training alone."""
    counted = Counter(trainability.list_lost(node))
    if session.phase != "train":  # temperature 0 evaluates, or is a group's baseline
        del counted[Untrainable.GREEDY]
    for reason, tokens in counted.items():
        session.count(f"untrainable/{reason}", tokens)
    if {Untrainable.UNRECORDED, Untrainable.GRAMMAR} & counted.keys():
        warnings.warn(
            "turns sampled with top-p, top-k, min-p, penalties, a logit bias or a grammar are stored untrainable: "
            "the engine does not record the support that they were sampled from",
            stacklevel=3,
        )
