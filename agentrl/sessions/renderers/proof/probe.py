"""Extends a conversation with nothing but a function that renders whole ones.

A chat template, and every renderer of the `renderers` package, can render a whole conversation. What a new message
adds does not depend on all earlier messages but on the last one's role, so what is rendered here is a short
conversation of two or three messages followed by the new ones; the tokens beyond the short conversation's are the
delta. That costs the same in the first turn as in the hundredth, and requires of the format only that it be
append-only, which `proof.py` checks on generated conversations.

Where consecutive tool results share a turn, the last one's closing tokens must wait: they are what differs between
a conversation that ends in one result and the same with another behind it (found once, at load). They open
whatever comes next, unless that is another result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.grammar import Grammar, special_or_none
from agentrl.sessions.renderers.parsing import Bound, RegionParser
from agentrl.sessions.renderers.proof.short_conversations import USER, calling, common, like, node_of, run_around
from agentrl.sessions.renderers.turns import TokenWriter
from agentrl.types import Message, Node, Tokenizer

Whole = Callable[[Sequence[Message], Sequence[ToolSchema], bool], list[int]]
"""Renders a whole conversation: (messages, tools, with generation prompt) -> token ids. RenderError: it can't."""

_CACHED = 512
Role = Literal["system", "developer", "user", "assistant", "tool"]


class ProbeRenderer:
    """A renderer made of a whole-conversation function and a grammar; see `base.Renderer`.

    Args of the constructor:
        name: what it calls itself.
        tokenizer: what `whole` encodes with.
        whole: renders whole conversations.
        grammar: reads its turns.
        stop_token_ids: tokens that end an assistant turn.
        end: the one that is written where a model left it out; None where the next turn's opener is the end.
        ender: with `end` None, the token that a model would write to end this message's turn.
        refuse: says why a message has no place in the format; None where it has one.
        history: writes what history shows of a turn without its reasoning, where that is another mode of the format.
        short: renders the short conversations, where `whole` has no place for calls without tools on offer.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        whole: Whole,
        grammar: Grammar,
        stop_token_ids: Sequence[int],
        *,
        end: int | None,
        ender: Callable[[Message], int] | None = None,
        refuse: Callable[[Message], str | None] = lambda message: None,
        history: ProbeRenderer | None = None,
        short: Whole | None = None,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.stop_token_ids: tuple[int, ...] = tuple(stop_token_ids)
        self._ends = self.stop_token_ids  # those that the format writes
        self.whole, self._end, self._ender, self._refuse, self._history = whole, end, ender, refuse, history
        self._short = short or whole
        self._cache: dict[object, tuple[list[Message], list[int]]] = {}
        self._closing = self._find_closing()
        self._prompt = self._beyond(self._short([USER], (), True), self._short([USER], (), False))
        thinking = tokenizer.decode(self._prompt).rstrip("\n").endswith("<think>")
        self.thinks_in_prompt = thinking
        opening, turn = self._short([USER], (), True), self._short([USER, calling(())], (), False)
        self._head = common(opening, turn)  # where a finished turn's content begins
        self._grammar = Bound(self.in_prompt(grammar), tokenizer, stop_token_ids)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[list[int]]:
        """One token list per message; see `base.Renderer.render`."""
        tools = tools if after is None else ()
        deltas: list[list[int]] = []
        start = 0
        while start < len(messages):
            if messages[start].role == "assistant":
                delta = self._opening(after) + self.turn(messages[start])
                deltas.append(delta)
                after = node_of(messages[start], delta)
                start += 1
                continue
            stop = next((n for n in range(start, len(messages)) if messages[n].role == "assistant"), len(messages))
            run = self._extend(after, messages[start:stop], tools)
            deltas += run
            after = node_of(messages[stop - 1], run[-1])
            start, tools = stop, ()
        return deltas

    def generation_prompt(self, after: Node | None = None) -> list[int]:
        """The tokens that open an assistant turn after `after`."""
        return self._opening(after)

    def turn(self, message: Message) -> list[int]:
        """The tokens that a model would have written for this assistant message, end of turn included."""
        if message.role != "assistant":
            raise RenderError(f"role={message.role!r} can't be an assistant turn")
        if problem := self._refuse(message):
            raise RenderError(f"{self.name} has no place for {problem} in an assistant message")
        if self.thinks_in_prompt:
            return self._turn_that_thinks(message)
        opening = self._short([USER], (), True)
        ids = self._whole_turn(message)
        return self._cut_at_end(self._behind_prompt(ids, opening), message)

    def _behind_prompt(self, ids: list[int], opening: list[int]) -> list[int]:
        """A turn without the prompt that opens it.

        White space that begins it may have merged with the prompt's: it is encoded apart, since sampling starts there.
        """
        if ids[: len(opening)] == opening:
            return ids[len(opening) :]
        start = run_around(self.tokenizer, opening, len(opening))[0]
        end = run_around(self.tokenizer, ids, start)[1]
        run, prompt = self.tokenizer.decode(ids[start:end]), self.tokenizer.decode(opening[start:])
        if ids[:start] != opening[:start] or not run.startswith(prompt) or self.tokenizer.encode(run) != ids[start:end]:
            raise RenderError(f"{self.name}: a finished turn does not begin with its generation prompt")
        return [*self.tokenizer.encode(run[len(prompt) :]), *ids[end:]]

    def past(self, message: Message, before: Node | None) -> list[int]:
        """An earlier turn without its reasoning; see `strip.RendersPastTurns`."""
        if self._history is not None:
            return [*self._history.generation_prompt(before), *self._history.turn(message)]
        if before is None or before.message.role == "assistant":
            return [*self._opening(before), *self.turn(message)]
        context, stable = self._short_context(before, ())
        settled = self._up_to_the_end([*context, message], [self._list_followers(message, text) for text in ("u", "v")])
        # both forms of the short conversation hold the same end tokens, whatever the turns between them show
        ends = [n for n, token in enumerate(settled) if token in self._ends]
        last = [n + 1 for n, token in enumerate(stable) if token in self._ends]
        at = len(stable) - last[-1] + ends[len(last) - 1] + 1 if last else len(stable)
        return [*settled[at:], *([] if self._ender is None else [self._ender(message)])]

    def parser(self, tools: Sequence[ToolSchema] = ()) -> RegionParser:
        """A fresh parser for one turn."""
        return self._grammar.parser(tools)

    def end_also(self, token_ids: Sequence[int]) -> None:
        self.stop_token_ids += tuple(token_ids)
        self._grammar.end_also(token_ids)

    def in_prompt(self, grammar: Grammar) -> Grammar:
        """The grammar as a turn needs it that begins where this format's prompt ends: where that opens reasoning."""
        opened = self.thinks_in_prompt and "reasoning" in grammar.regions
        return replace(grammar, start="reasoning") if opened else grammar

    # ------------------------------------------------------------------------------- assistant turns

    def _whole_turn(self, message: Message) -> list[int]:
        """A user message and this turn: as history where it holds no reasoning, as the last turn where it does.

        Several templates write an empty thinking block into a last turn that has none, and drop it later.
        """
        if not message.reasoning_content:
            try:
                return self._settle([USER, message], "user")
            except RenderError:
                pass  # the format requires tool results after this turn
        return self._short([USER, message], (), False)

    def _settle(self, context: list[Message], role: Role) -> list[int]:
        """The context's tokens, up to the last turn's end, once a message of this role has followed."""
        calls = context[-1].tool_calls or ()
        call_id, name = (calls[0].id, calls[0].function.name) if calls else (None, None)
        probes = [Message(role=role, content=text, tool_call_id=call_id, name=name) for text in ("u", "v")]
        return self._up_to_the_end(context, [[probe] for probe in probes])

    def _up_to_the_end(self, context: list[Message], followed: list[list[Message]]) -> list[int]:
        """The context's tokens, up to the last turn's end, where two different messages have followed."""
        one, two = (self._short([*context, *probes], (), False) for probes in followed)
        last = next((n for n in range(common(one, two) - 1, -1, -1) if one[n] in self._ends), None)
        if last is None:
            raise RenderError(f"{self.name}: no token ends an assistant turn before a {followed[0][0].role} message")
        return one[: last if self._end is None else last + 1]

    def _cut_at_end(self, ids: list[int], message: Message) -> list[int]:
        """A turn up to its end token: what the format puts behind it is the next node's."""
        if self._ender is not None:
            return [*ids, self._ender(message)]
        assert self._end is not None
        last = next((n for n in range(len(ids) - 1, -1, -1) if ids[n] in self._ends), None)
        return ids[: last + 1] if last is not None else [*ids, self._end]

    def _turn_that_thinks(self, message: Message) -> list[int]:
        """The generation prompt has opened the reasoning.

        Formats differ in what a finished turn shows of that: all of it, only the end of an empty one, or nothing
        (then reasoning and its end are written here).
        """
        opening, ids = self._short([USER], (), True), self._short([USER, message], (), False)
        without = self._short([USER, message.model_copy(update={"reasoning_content": None})], (), False)
        if ids[: len(opening)] == opening and not (message.reasoning_content and ids == without):
            return self._cut_at_end(ids[len(opening) :], message)
        close = special_or_none(self.tokenizer, "</think>")
        line = "\n" if self.tokenizer.decode(opening).endswith("\n") else ""
        if not message.reasoning_content:
            if ids[self._head : self._head + 1] == [close]:
                return self._cut_at_end(ids[self._head :], message)
            thinking = self._short([USER, message.model_copy(update={"reasoning_content": "r"})], (), False)
            if thinking[: len(opening)] == opening and close in thinking[len(opening) :]:
                end = thinking.index(close, len(opening))
                return self.tokenizer.encode(line) + self._cut_at_end(thinking[end:], message)
        bare = without[self._head :]
        writer = TokenWriter(self.tokenizer)
        writer.text(f"{message.reasoning_content or ''}{line}")
        writer.mark("</think>")
        writer.text(2 * line)
        return writer.take() + self._cut_at_end(bare[1:] if bare[:1] == [close] else bare, message)

    # ----------------------------------------------------------------------------------- extensions

    def _opening(self, after: Node | None) -> list[int]:
        if after is None:
            return list(self._prompt)
        if after.message.role == "assistant":
            return self._behind(after, self._second_opening())
        context, stable = self._short_context(after, ())
        return self._beyond(self._short(context, (), True), stable)

    def _second_opening(self) -> list[int]:
        """The tokens that open a turn directly after another one."""
        if self._end is None:
            return list(self._prompt)
        full = self._short([USER, calling(())], (), True)
        head = full[: len(full) - len(self._prompt)]
        last = next((n for n in range(len(head) - 1, -1, -1) if head[n] in self._ends), len(head) - 1)
        return full[last + 1 :]

    def _extend(self, after: Node | None, run: Sequence[Message], tools: Sequence[ToolSchema]) -> list[list[int]]:
        context, stable = self._short_context(after, run) if after is not None else ([], [])
        written = self.whole if after is None else self._short
        deltas: list[list[int]] = []
        for count in range(1, len(run) + 1):
            try:
                full = written([*context, *run[:count]], tools, False)
            except RenderError:
                if after is not None or count == len(run):
                    raise
                deltas.append([])  # the format can't begin with this alone: its tokens come with the next one's
                continue
            extended = self._stable(full, run[count - 1].role)
            deltas.append(self._beyond(extended, stable))
            stable = extended
        first = 1 if after is None else 0
        for place in range(len(context) + first, len(context) + len(run)):
            self._refuse_dropped(written, [*context, *run], place, tools)
        if after is not None:
            deltas[0] = self._behind(after, deltas[0])
        return deltas

    def _refuse_dropped(
        self, written: Whole, messages: Sequence[Message], place: int, tools: Sequence[ToolSchema]
    ) -> None:
        """Refuse a system message behind others whose text makes no difference, as in templates that read the first."""
        message = messages[place]
        if message.role not in ("system", "developer") or not message.text.strip():
            return
        other = message.model_copy(update={"content": f"{message.text} u"})
        changed = [*messages[:place], other, *messages[place + 1 :]]
        if written(changed, tools, False) == written(messages, tools, False):
            raise RenderError(
                f"{self.name}: the chat template drops a {message.role} message that follows others; "
                "a user's message is where its text is shown"
            )

    def _behind(self, after: Node, delta: list[int]) -> list[int]:
        """Mind how the turn before ended: its end token is written once, by the model or by us."""
        if after.message.role != "assistant":
            return delta
        last = after.token_ids[-1] if after.token_ids else None
        if self._end is None:
            return delta[1:] if last in self.stop_token_ids and delta[:1] == [last] else delta
        return delta if last in self.stop_token_ids else [self._end, *delta]

    def _beyond(self, full: list[int], stable: list[int]) -> list[int]:
        if full[: len(stable)] != stable:
            raise RenderError(f"{self.name} is not append-only here: an added message changes what comes before it")
        return full[len(stable) :]

    def _stable(self, full: list[int], role: str) -> list[int]:
        """The part of a rendered conversation that no later message can change."""
        if role == "tool" and self._closing and full[-len(self._closing) :] == self._closing:
            return full[: -len(self._closing)]
        return full

    def _short_context(self, after: Node, run: Sequence[Message]) -> tuple[list[Message], list[int]]:
        """A short conversation that ends as the real one does, and its tokens as far as they are settled."""
        message = after.message
        results = [m for m in run if m.role == "tool"]
        calls = tuple((c.id, c.function.name) for c in message.tool_calls or ())
        wanted = tuple((m.tool_call_id, m.name) for m in results)
        key = (message.role, calls, message.tool_call_id, message.name, wanted, run[0].role if run else "")
        if key not in self._cache:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            context = like(message, calls, results)
            if message.role == "assistant":
                stable = self._settle(context, run[0].role if run else "user")
            else:
                stable = self._stable(self._short(context, (), False), message.role)
            self._cache[key] = context, stable
        return self._cache[key]

    def _list_followers(self, message: Message, text: str) -> list[Message]:
        """Results of a turn's calls, and another user message."""
        calls = [call for call in message.tool_calls or () if call.function.name]
        results = [Message(role="tool", content=text, tool_call_id=c.id, name=c.function.name) for c in calls]
        return [*results, Message(role="user", content=text)]

    def _find_closing(self) -> list[int]:
        """The tokens that close a tool turn and make way for another result."""
        context = [USER, calling((("call_0", "f"), ("call_1", "f")))]
        results = [Message(role="tool", content="r", tool_call_id=f"call_{n}", name="f") for n in (0, 1)]
        try:
            one = self._short([*context, results[0]], (), False)
            two = self._short([*context, *results], (), False)
        except RenderError:
            return []  # the format knows no tool results, or no two of them
        return one[common(one, two) :]
