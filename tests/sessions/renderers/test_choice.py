"""Which renderer `auto` takes: a family's tokens are not its format, the chat template is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, RenderError, UnknownName
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers import get_renderer, parse
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.renderers.proof.check import check_renderer
from agentrl.sessions.renderers.proof.trials import TOOLS
from agentrl.sessions.renderers.registry import RENDERERS, candidates
from agentrl.types import FunctionCall, Message, Node, ToolCall
from tests.sessions.renderers import minimal
from tests.sessions.renderers.support import CHATML_TOKENS, tokenizer, trained, with_template
from tests.sessions.renderers.table import BEGIN, DOCS, END, MODELS, Model, row

BY_NAME = {model.name: model for model in MODELS}
USER = Message(role="user", content="u")
FOREIGN = (
    "Phi 4", "OLMo 2", "OLMo 3", "SmolLM3", "Hermes 3", "Nemotron 3 Nano", "Functionary 3.2", "Falcon H1",
    "LFM2", "MiMo VL", "QwQ 32B", "MiniCPM 3", "MiniCPM 5",
)  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.slow
def test_a_model_with_a_familys_tokens_and_another_template_is_not_taken_for_the_family(name: str) -> None:
    """All of these trained in a foreign format without a word: `auto` went by special tokens alone."""
    model = BY_NAME[name]
    assert candidates(model.tokenizer())
    made = row(model)
    assert (made.renderer, made.exact) in (("`generic`", "yes"), ("`generic`", "but for"), ("refused", ""))


@pytest.mark.slow
def test_a_refusal_names_what_was_tried_and_how_to_name_another() -> None:
    with pytest.raises(ConfigError, match=r"chatml does not fit \(chat: .*differ") as caught:
        get_renderer(BY_NAME["Bielik 11B"].tokenizer())
    assert "model.renderer=" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Functionary 3.2", r"the answer '42' is read as 'all\\n42'"),
        ("Seed OSS", r"the reasoning 'I count\.' is read as None"),
        ("Solar Open", r"the answer '42' is read as '<\|content\|>42'"),
    ],
)
def test_a_template_whose_turns_are_read_as_something_else_is_refused(name: str, says: str) -> None:
    """They only append, which was all that was asked of them."""
    with pytest.raises(ConfigError, match="can't be read back: " + says):
        get_renderer(BY_NAME[name].tokenizer())


TURNS = """{% for m in messages %}<|a|>{{ m.role }}
{% if m.role == 'assistant' %}{{ ANSWER }}{% else %}{{ OTHER }}{% endif %}<|b|>
{% endfor %}{% if add_generation_prompt %}<|a|>assistant
{% endif %}"""
ANSWER, THINKS = "m.content", "('<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '')"


@pytest.mark.parametrize(
    ("answer", "other", "says"),
    [
        (ANSWER, "'<image>' if m.content is string else m.content[0].text", "the user's text is not in the prompt"),
        (f"{THINKS} + m.content", "m.content", ""),
        (f"{THINKS.replace('</think>', '</think><|b|>')} + m.content", "m.content", "is read as|only stop token"),
        (f"{THINKS.replace('think>', 'muse>')} + m.content", "m.content", "the reasoning 'I count.' is read as None"),
    ],
    ids=["the user's text left out", "whole", "a stop token within a turn", "thoughts in the answer"],
)
def test_a_template_is_taken_only_if_all_its_parts_come_out_again(answer: str, other: str, says: str) -> None:
    marks = ("<|a|>", "<|b|>", "<think>", "</think>")
    made = with_template(trained(marks), TURNS.replace("ANSWER", answer).replace("OTHER", other), eos_token="<|b|>")
    if not says:
        assert get_renderer(made).name == "generic"
        return
    with pytest.raises(ConfigError, match=says):
        get_renderer(made)


@pytest.mark.slow
def test_qwen_35_whose_template_does_not_think_is_rendered_without_thoughts() -> None:
    """That of 0.8B and 2B: the prompt holds an empty thought, which no renderer wrote."""
    thinking = BY_NAME["Qwen 3.5"].tokenizer()
    unless, only = (f"enable_thinking is {what}" for what in ("defined and enable_thinking is false", "not defined"))
    template = (thinking.chat_template or "").replace(unless, f"{only} or enable_thinking is false")
    made = with_template(thinking, template)
    renderer = get_renderer(made)
    assert renderer.name == "qwen3.5-instruct"
    answer = Message(role="assistant", content="42")
    whole = [token for delta in renderer.render([USER, answer]) for token in delta]
    assert made.decode(whole).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n42<|im_end|>")
    assert parse(renderer, renderer.turn(answer)).message == answer
    assert get_renderer(thinking).name == "qwen3.5"


QUICK = tuple(model for model in MODELS if not model.real and model.name != "Devstral Small")
"""Those whose tokenizer is small: a row takes some tenths of a second."""


@pytest.mark.parametrize("model", QUICK, ids=lambda model: model.name)
@pytest.mark.slow
def test_the_table_in_the_docs_says_what_auto_makes_of_a_family(model: Model) -> None:
    assert row(model).line() in DOCS.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("model", [model for model in MODELS if model not in QUICK], ids=lambda model: model.name)
def test_the_table_in_the_docs_holds_for_the_real_tokenizers(model: Model) -> None:
    assert row(model).line() in DOCS.read_text().splitlines()


def test_the_table_in_the_docs_holds_every_family_and_no_other() -> None:
    text = DOCS.read_text()
    lines = text[text.index(BEGIN) : text.index(END)].strip().splitlines()[3:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [model.name for model in MODELS]


@pytest.mark.parametrize(("old", "new"), [("<|im_end|>", "<|im_end|> "), ("<tools>", "<tool_list>")])
@pytest.mark.slow
def test_one_changed_word_in_a_familys_template_is_enough_for_auto_to_leave_it(old: str, new: str) -> None:
    qwen = tokenizer("qwen2.5")
    assert old in (qwen.chat_template or "")
    assert get_renderer(qwen).name == "qwen2.5"
    assert get_renderer(with_template(qwen, (qwen.chat_template or "").replace(old, new))).name == "generic"


TRIMMED = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content TRIM }}<|im_end|>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(("trim", "taken"), [("", "chatml"), ("| trim", "generic")])
def test_a_template_that_trims_texts_is_not_taken_for_a_family_that_keeps_them(trim: str, taken: str) -> None:
    """They differ only in texts with white space around them, of which the trials had none."""
    renderer = get_renderer(with_template(tokenizer("chatml-text"), TRIMMED.replace("TRIM", trim)))
    assert renderer.name == taken
    shown = renderer.tokenizer.decode(renderer.render([Message(role="user", content=" x ")])[0])
    assert (" x " in shown) == (not trim)


def test_a_tokenizer_that_loses_texts_is_refused_for_a_familys_format_as_for_any_other() -> None:
    spec = json.loads(tokenizer("chatml-text").published.to_str())
    spec["normalizer"] = {"type": "Lowercase"}
    lossy = with_template(HFTokenizer(json.dumps(spec)), TRIMMED.replace("TRIM", ""))
    with pytest.raises(ConfigError, match=r"the answer 'Pearl, then\.' is read as 'pearl, then\.'"):
        get_renderer(lossy)


FIRST_SYSTEM = (
    "{% if messages[0].role == 'system' %}<|im_start|>system: {{ messages[0].content }}<|im_end|>{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_system_message_that_a_template_drops_behind_others_is_refused_and_not_left_out() -> None:
    """Such a template shows a first one, so its renderer passes; an environment's later ones were never seen."""
    renderer = get_renderer(with_template(tokenizer("chatml-text"), FIRST_SYSTEM))
    assert renderer.name == "generic"
    later = Message(role="developer", content="Be brief.")
    renderer.render([later, USER])
    answered = Node(0, None, Message(role="assistant", content="a"), [renderer.stop_token_ids[0]], [], [])
    for messages, after in (([USER, later], None), ([later, USER], answered)):
        with pytest.raises(RenderError, match="drops a developer message that follows others"):
            renderer.render(messages, after=after)


def test_tools_that_a_template_lists_in_other_words_are_a_difference_though_it_writes_no_calls() -> None:
    listing = "{% if tools %}<|im_start|>system\nMy tools: {{ tools | tojson }}<|im_end|>\n{% endif %}" + minimal.YI
    assert get_renderer(with_template(trained(CHATML_TOKENS), minimal.YI)).name == "chatml"
    assert get_renderer(with_template(trained(CHATML_TOKENS), listing)).name == "generic"


def test_without_a_template_auto_goes_by_tokens_and_says_so_and_the_check_does_not_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = trained(CHATML_TOKENS)
    assert get_renderer(plain).name == "chatml"
    assert "no chat template to compare with" in caplog.text
    failed = [row for row in check_renderer(plain, count=4) if row.ok is False]
    assert [row.question for row in failed] == ["compared with the template"]


def test_a_check_in_which_every_conversation_is_refused_does_not_pass() -> None:
    """Hermes 3 and the newer Mistrals passed: every comparison was refused, and nothing was left to differ."""
    picky = "{% if messages | length > 2 or messages[0].content != 'u' %}{{ raise_exception('no') }}{% endif %}"
    rows = check_renderer(with_template(trained(CHATML_TOKENS), picky + minimal.YI), "chatml", count=4)
    failed = {row.question for row in rows if row.ok is False}
    assert {"chatml equals the template: chat", "compared with the template"} <= failed


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "chatml"])
def test_every_family_shows_the_model_its_system_message(family: str, caplog: pytest.LogCaptureFixture) -> None:
    renderer = get_renderer(tokenizer(family), family)
    assert "drops system messages" not in caplog.text
    told = renderer.render([Message(role="system", content="Zebra"), USER])
    assert "Zebra" in renderer.tokenizer.decode([token for ids in told for token in ids])


def test_a_known_renderer_that_drops_system_messages_causes_a_warning(
    caplog: pytest.LogCaptureFixture, forget_names: Callable[[Any], None]
) -> None:
    def deaf(tokens: HFTokenizer):
        made = RENDERERS.find("chatml").make(tokens)
        render = made.render
        made.render = lambda messages, **kw: render([m for m in messages if m.role != "system"], **kw)  # type: ignore[method-assign]
        return made

    forget_names(RENDERERS)
    RENDERERS.register("deaf", deaf)
    get_renderer(trained(CHATML_TOKENS), "deaf")
    assert "drops system messages" in caplog.text


PLUGIN = """
from agentrl.sessions.renderers.families.chatml import ChatML
from agentrl.sessions.renderers.families.table import RendererFamily

MINE = RendererFamily(lambda tokenizer: ChatML(tokenizer, "mine"), marks=("<|im_start|>", "<|im_end|>"))
NOTHING = lambda tokenizer: 3
"""


def test_a_renderer_from_a_file_serves_by_its_path_and_a_registered_family_by_auto(
    tmp_path: Path, forget_names: Callable[[Any], None]
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    model = with_template(trained(CHATML_TOKENS), minimal.YI)
    assert get_renderer(model, f"{tmp_path}/mine.py:MINE").name == "mine"
    forget_names(RENDERERS)
    RENDERERS.register("mine", f"{tmp_path}/mine.py:MINE")
    RENDERERS.register("broken", "no_such_module_at_all:X")
    assert get_renderer(model).name == "mine"
    with pytest.raises(UnknownName, match=r"there is no 'MINF' in .*; did you mean 'MINE'\?"):
        get_renderer(model, f"{tmp_path}/mine.py:MINF")
    with pytest.raises(ConfigError, match="built int, which is no renderer"):
        get_renderer(model, f"{tmp_path}/mine.py:NOTHING")


# ------------------------------------------------------------------------------------------ grammars


UNREADABLE = minimal.YI.replace(
    "{{ m['content'] }}", "{{ m['content'] }}{% if m['tool_calls'] %}!{{ m['tool_calls'] | tojson }}!{% endif %}"
).replace("{% for", "{% if tools %}{{ tools | tojson }}{% endif %}{% for", 1)  # fmt: skip


@pytest.mark.slow
def test_tools_whose_calls_no_grammar_reads_back_are_refused_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    model = with_template(trained(CHATML_TOKENS), UNREADABLE)
    renderer = get_renderer(model, "generic")
    assert "tools are refused" in caplog.text
    assert renderer.render([USER])
    with pytest.raises(RenderError, match=r"no known grammar reads back.*model\.renderer=generic:GRAMMAR.*hermes"):
        renderer.render([USER], tools=TOOLS)
    named = get_renderer(model, "generic:hermes")
    assert named.render([USER], tools=TOOLS)
    assert "'hermes' does not read back" in caplog.text


@pytest.mark.slow
def test_a_grammar_is_found_by_reading_calls_back_where_no_clue_in_the_template_names_it() -> None:
    spelt = minimal.FALCON_H1.replace("<tool_call>", "<tool' ~ '_call>")
    model = with_template(trained(CHATML_TOKENS[:2]), spelt, bos_token="")
    renderer = get_renderer(model, "generic")
    call = ToolCall(id="c", function=FunctionCall(name="f", arguments='{"a": 1}'))
    read = parse(renderer, renderer.turn(Message(role="assistant", content=None, tool_calls=[call]))).message
    assert [(c.function.name, c.function.arguments) for c in read.tool_calls or []] == [("f", '{"a": 1}')]


@pytest.mark.parametrize(("name", "says"), [("generic:hermse", "hermes"), ("qwen3:hermes", "qwen3"), ("qwen4", "qwen")])
def test_a_renderer_or_grammar_that_is_not_known_is_refused_with_the_nearest_name(name: str, says: str) -> None:
    with pytest.raises(UnknownName, match=says):
        get_renderer(trained(CHATML_TOKENS), name)


# -------------------------------------------------------------------------- white space at the front


@pytest.mark.slow
@pytest.mark.parametrize("text", ["\nyes", "\n\n  yes", " yes", "\n"])
@pytest.mark.parametrize("line", ["\n", "\n\n"])
def test_assistant_text_that_begins_with_white_space_is_written_behind_the_prompt(text: str, line: str) -> None:
    """The template's text merged the prompt's line feed with the answer's, and the turn was refused."""
    template = minimal.YI.replace("{{ '\\n' }}", "{{ '" + line.replace("\n", "\\n") + "' }}", 2).replace(
        "<|im_start|>assistant{{ '\\n' }}", "<|im_start|>assistant{{ '" + line.replace("\n", "\\n") + "' }}"
    )
    model = with_template(_merging(), template)
    renderer = get_renderer(model, "generic")
    message = Message(role="assistant", content=text)
    written = renderer.turn(message)
    assert model.decode(written) == f"{text}<|im_end|>"
    assert parse(renderer, written).message == message
    [_, answered] = renderer.render([USER, message])
    assert answered == renderer.generation_prompt() + written


def _merging() -> HFTokenizer:
    """ChatML's tokens on a tokenizer with a token for two line feeds."""
    return tokenizer("qwen2.5")
