"""What goes into a conversation format is looked for in what comes out, part by part."""

from __future__ import annotations

import logging

import pytest

from agentrl.errors import ConfigError, RenderError
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.families.generic import unproven
from agentrl.sessions.renderers.proof.check import check_renderer
from agentrl.sessions.renderers.proof.markers import WARNED, MarkerCheck, MarkerPart, find_lost, read_back
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Message
from tests.sessions.renderers.support import trained, with_template
from tests.sessions.renderers.table import in_short

WHOLE = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>tool
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>
{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
FAULTS: dict[MarkerPart, tuple[str, str]] = {
    MarkerPart.SYSTEM: ("{{ messages[0].content }}<|im_end|>", "<|im_end|>"),
    MarkerPart.USER: ("user\n{{ message.content }}", "user\n{{ message.content | replace('ruby', '') }}"),
    MarkerPart.TOOLS: ("{{ tool | tojson }}", ""),
    MarkerPart.CALL: ('"arguments": {{ call.function.arguments | tojson }}', '"arguments": {}'),
    MarkerPart.RESULT: ("tool\n{{ message.content }}", "tool\n{{ message.content | replace('onyx', '') }}"),
    MarkerPart.REASONING: ("{{ message.reasoning_content }}", "{{ message.reasoning_content | upper }}"),
    MarkerPart.ANSWER: (
        "{% endif %}{{ message.content }}",
        "{% endif %}{{ 'to all: ' if message.content }}{{ message.content }}",
    ),
    MarkerPart.STOP: (
        "{% endif %}{{ message.content }}",
        "{% endif %}{{ message.content ~ '<|im_end|>' if message.content }}",
    ),
}


def served(template: str = WHOLE) -> HFTokenizer:
    return with_template(trained(MARKS), template, eos="<|im_end|>")


def not_read(tokenizer: HFTokenizer, grammar: str = "hermes") -> dict[MarkerPart, MarkerCheck]:
    return {found.part: found for found in read_back(unproven(tokenizer, grammar=grammar)) if found.lost}


@pytest.mark.slow
def test_all_parts_of_a_template_that_keeps_them_come_out_again() -> None:
    found = read_back(get_renderer(served(), "generic"))
    assert found == [MarkerCheck(part, True) for part in MarkerPart]
    assert in_short(found) == "all"


@pytest.mark.parametrize("part", MarkerPart)
def test_a_part_that_a_template_loses_is_named_and_no_other(part: MarkerPart) -> None:
    old, new = FAULTS[part]
    assert old in WHOLE
    assert list(not_read(served(WHOLE.replace(old, new)))) == [part]


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in MarkerPart if part not in (*WARNED, MarkerPart.CALL)])
def test_what_the_check_finds_is_what_the_run_refuses(part: MarkerPart) -> None:
    tokenizer = served(WHOLE.replace(*FAULTS[part]))
    why = not_read(tokenizer)[part].lost
    with pytest.raises(ConfigError) as refused:
        get_renderer(tokenizer, "generic")
    rows = {row.question: row for row in check_renderer(tokenizer, "generic", count=3)}
    assert rows[f"generic gives back: {part}"].answer == "no"
    assert rows[f"generic gives back: {part}"].ok is False
    assert f"can't be read back: {why}" in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("part", WARNED)
def test_tools_and_system_messages_that_a_template_does_not_show_are_warned_of(
    part: MarkerPart, caplog: pytest.LogCaptureFixture
) -> None:
    """The templates of DeepSeek V3 and R1 leave out the tools on offer, and nothing said so."""
    tokenizer = served(WHOLE.replace(*FAULTS[part]))
    with caplog.at_level(logging.WARNING):
        renderer = get_renderer(tokenizer, "generic")
    assert WARNED[part] in caplog.text
    assert not find_lost(renderer)
    rows = {row.question: row for row in check_renderer(tokenizer, "generic", count=3)}
    assert rows[f"generic gives back: {part}"].ok is None


@pytest.mark.slow
def test_a_format_that_nobody_named_refuses_tools_that_its_template_does_not_list() -> None:
    """They were warned of alone, and a run whose model knew none of its tools went on; text is served as before."""
    tokenizer = served(WHOLE.replace(*FAULTS[MarkerPart.TOOLS]))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    messages = [Message(role="user", content="hello")]
    chosen, named = (TurnGenerator(get_renderer(tokenizer, name), None) for name in ("auto", "generic"))
    with pytest.raises(RenderError, match=r"does not list the tools on offer.*model\.renderer=generic;"):
        chosen.render(messages, tools=tools)
    assert chosen.render(messages) == named.render(messages)
    assert named.render(messages, tools=tools)
    TurnGenerator(get_renderer(served()), None).render(messages, tools=tools)


def test_a_part_without_a_place_is_not_lost() -> None:
    bare = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    bare += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    found = read_back(get_renderer(served(bare), "generic"))
    assert in_short(found) == "no place: tool list, call, result, reasoning"
