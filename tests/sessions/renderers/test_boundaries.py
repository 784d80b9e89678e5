"""Where one message's tokens end and the next one's begin: end tokens, shared tool turns, smuggled markup."""

from __future__ import annotations

import json
import random

import pytest

from agentrl.errors import ConfigError, InvalidInput, RenderError, UnknownName
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers import get_renderer, parse
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.renderers.guard import MarkupGuard
from agentrl.sessions.renderers.proof.check import ON_PURPOSE, as_table, check_renderer
from agentrl.sessions.renderers.proof.trials import TOOLS, conversation, kimi_id, nine_letters, nodes
from agentrl.types import FunctionCall, Message, Node, Part, ToolCall
from tests.sessions.renderers import support
from tests.sessions.renderers.published import published
from tests.sessions.renderers.support import CHATML_TOKENS, tokenizer, trained
from tests.sessions.renderers.test_parsing import FAMILY_NAMES, renderer_of

SHARED_TURN = ("chatml", "smollm2", "qwen2.5", "qwen3", "qwen3-coder", "glm-4.5", "deepseek-v3")
SESSIONS = 20
TOOLED = [name for name in FAMILY_NAMES if name == "chatml-text" or FAMILIES[name].expresses.tools]


def node(message: Message, ids: list[int]) -> Node:
    return Node(0, None, message, ids, [], [])


def said(renderer: Renderer, text: str = "yes") -> Node:
    message = Message(role="assistant", content=text)
    return node(message, renderer.generation_prompt() + renderer.turn(message))


def calling(family: str, count: int = 1) -> Message:
    calls = [
        ToolCall(
            id=kimi_id("f", n) if family.startswith("kimi") else nine_letters("f", n), function=FunctionCall(name="f")
        )
        for n in range(count)
    ]
    return Message(role="assistant", content="", tool_calls=calls)


def results(message: Message) -> list[Message]:
    return [
        Message(role="tool", content=f"r{n}", tool_call_id=call.id, name="f")
        for n, call in enumerate(message.tool_calls or [])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_models_end_token_is_written_once_and_a_missing_one_opens_the_next_node(family: str) -> None:
    renderer = renderer_of(family)
    whole = said(renderer)
    cut = node(whole.message, whole.token_ids[:-1])
    user = [Message(role="user", content="and now?")]
    [after_whole], [after_cut] = renderer.render(user, after=whole), renderer.render(user, after=cut)
    joined = renderer.tokenizer.decode(whole.token_ids + after_whole)
    mended = renderer.tokenizer.decode(cut.token_ids + after_cut)
    if family == "gpt-oss":  # a finished answer in its history ends with <|end|>
        mended = mended.replace("yes<|end|>", "yes<|return|>")
    assert joined == mended
    text = renderer.tokenizer.decode(after_whole)
    assert not any(text.startswith(renderer.tokenizer.decode([stop])) for stop in renderer.stop_token_ids)
    assert "and now?" in text


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.slow
def test_rendering_at_once_equals_rendering_turn_by_turn(family: str) -> None:
    renderer = renderer_of(family)
    able = FAMILIES["chatml" if family == "chatml-text" else family].expresses
    ids = kimi_id if family.startswith("kimi") else nine_letters
    for seed in range(SESSIONS):
        messages = conversation(random.Random(seed), able, reasoning=0.8 * able.reasoning, call_id=ids)
        offered = TOOLS if able.tools else ()
        piecewise = [n.token_ids for _, n in nodes(renderer, messages, offered)]
        assert renderer.render(messages, tools=offered) == piecewise


@pytest.mark.slow
@pytest.mark.parametrize("family", TOOLED)
def test_tool_results_that_arrive_one_by_one_take_the_same_places_as_together(family: str) -> None:
    renderer = renderer_of(family)
    count = 3 if family == "chatml-text" or FAMILIES[family].expresses.parallel else 1
    call = calling(family, count)
    after = node(call, renderer.generation_prompt() + renderer.turn(call))
    together = renderer.render(results(call), after=after)
    path, last = [], after
    for result in results(call):
        [ids] = renderer.render([result], after=last)
        path += ids
        last = node(result, ids)
    ended = renderer.generation_prompt(last)
    decode = renderer.tokenizer.decode
    assert decode(path + ended) == decode([i for ids in together for i in ids] + ended)


@pytest.mark.slow
@pytest.mark.parametrize("family", SHARED_TURN)
def test_results_that_share_a_turn_open_it_once_and_close_it_once(family: str) -> None:
    renderer = renderer_of(family)
    call = calling(family, 2)
    after = node(call, renderer.generation_prompt() + renderer.turn(call))
    first, second = renderer.render(results(call), after=after)
    opener = {
        "glm-4.5": "<|observation|>",
        "glm-4.6": "<|observation|>",
        "deepseek-v3": "<\uff5ctool\u2581outputs\u2581begin\uff5c>",
    }.get(family, "<|im_start|>")
    text = renderer.tokenizer.decode(after.token_ids + first + second)
    tail = text[text.index("r0") :]
    assert opener not in tail
    assert text.count(opener) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_text_can_not_smuggle_in_any_special_token(family: str) -> None:
    """A user, a tool or a schema that spells a special token gets plain tokens, and the model sees the text."""
    renderer = renderer_of(family)
    added: dict[str, int] = renderer.tokenizer.added
    special = set(added.values())

    def count(rendered: list[list[int]]) -> int:
        return sum(token in special for ids in rendered for token in ids)

    able = FAMILIES["chatml" if family == "chatml-text" else family].expresses
    harmless = renderer.render([Message(role="system", content="s"), Message(role="user", content="u")])
    counted = count(harmless)
    for token in added:
        evil = [Message(role="system", content=f"s{token}"), Message(role="user", content=f"u{token}u")]
        rendered = renderer.render(evil)
        assert count(rendered) == counted, token
        if not token.isspace():
            assert f"u{token}u" in renderer.tokenizer.decode(rendered[-1])
    if able.tools:
        evil_tool = {
            "type": "function",
            "function": {
                "name": "f",
                "description": "".join(added),
                "parameters": {"type": "object", "properties": {}},
            },
        }
        kind = {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
        }
        user = [Message(role="user", content="u")]
        counts = [count(renderer.render(user, tools=[tool])) for tool in (evil_tool, kind)]
        assert counts[0] == counts[1]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_model_that_spells_a_delimiter_in_plain_tokens_has_written_text(family: str) -> None:
    renderer = renderer_of(family)
    for token in renderer.tokenizer.added:
        if family in ("chatml-text", "smollm2") and "tool" in token:
            continue
        ids = renderer.tokenizer.encode(f"say {token} now")
        if family == "gpt-oss":
            ids = [*renderer.turn(Message(role="assistant", content=""))[:-1], *ids]
        message = parse(renderer, ids).message
        assert f"say {token} now" in (message.content or "") + (message.reasoning_content or "")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_images_are_refused_with_the_place_named(family: str) -> None:
    image = Message(role="user", content=[Part(type="image_url", image_url={"url": "data:"})])
    with pytest.raises(RenderError, match="user message"):
        renderer_of(family).render([image])


@pytest.mark.parametrize(
    ("family", "message", "word"),
    [
        ("mistral", Message(role="assistant", content="a", reasoning_content="r"), "reasoning"),
        ("deepseek-v3", Message(role="assistant", content="a", reasoning_content="r"), "reasoning"),
        ("llama-3", calling("llama-3", 2), "several tool calls"),
        ("gpt-oss", calling("gpt-oss", 2), "several tool calls"),
        ("gemma-4", calling("gemma-4").model_copy(update={"content": "a"}), "content beside a tool call"),
        ("kimi-k2", Message(role="user", content="u"), "role='user'"),
    ],
)
@pytest.mark.slow
def test_what_a_format_can_not_express_is_refused_not_dropped(family: str, message: Message, word: str) -> None:
    with pytest.raises(RenderError, match=word):
        renderer_of(family).turn(message)


def test_a_malformed_call_is_written_back_in_the_models_own_words() -> None:
    renderer = renderer_of("chatml")
    raw = '\n{"name": oops}\n'
    call = ToolCall(id="call_0", function=FunctionCall(name="", arguments=raw), error="bad")
    text = renderer.tokenizer.decode(renderer.turn(Message(role="assistant", content="", tool_calls=[call])))
    assert text == f"<tool_call>{raw}</tool_call><|im_end|>"


# ------------------------------------------------------------------------------------ finding one


@pytest.mark.parametrize(
    "family",
    ["smollm2", "qwen2.5", "qwen3", "llama-3", "mistral", "deepseek-v3", "glm-4.5", "kimi-k2", "gpt-oss", "chatml"],
)
@pytest.mark.slow
def test_a_family_is_found_by_its_tokenizer(family: str) -> None:
    assert get_renderer(tokenizer(family)).name == family


def test_an_unknown_renderer_names_its_neighbour() -> None:
    with pytest.raises(UnknownName, match="did you mean 'qwen3'"):
        get_renderer(tokenizer("chatml"), "qwen-3")


def test_a_tokenizer_without_template_or_known_tokens_finds_no_renderer() -> None:
    with pytest.raises(ConfigError, match="name one of"):
        get_renderer(trained(("<s>",)))


def test_a_family_that_does_not_fit_the_tokenizer_says_which_token_is_missing() -> None:
    with pytest.raises(InvalidInput, match="im_start"):
        get_renderer(trained(("<|im_end|>",)), "chatml")


# -------------------------------------------------------------------------------------- the generic


def with_template(template: str, tokens: tuple[str, ...] = CHATML_TOKENS) -> HFTokenizer:
    plain = trained(tokens)
    source = plain.published.to_str()
    assert json.loads(source)
    return HFTokenizer(source, {"chat_template": template})


APPENDING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_any_append_only_template_is_served_by_the_generic_renderer() -> None:
    renderer = get_renderer(with_template(APPENDING), "generic")
    message = Message(role="assistant", content="hi <|im_end|>")
    assert renderer.tokenizer.decode(renderer.turn(message)) == "hi <|im_end|><|im_end|>"
    assert parse(renderer, renderer.turn(message)).message == message
    [ids] = renderer.render([Message(role="user", content="more")], after=said(renderer))
    assert renderer.tokenizer.decode(ids) == "\n<|im_start|>user\nmore<|im_end|>\n"


@pytest.mark.parametrize(
    "template",
    [
        APPENDING.replace("{{ m.content }}", "{{ m.content if loop.last else m.content[:1] }}"),
        "{{ messages | length }}" + APPENDING,
    ],
)
def test_a_template_that_rewrites_history_is_refused_with_the_place(template: str) -> None:
    with pytest.raises(ConfigError, match=r"not append-only: .*"):
        get_renderer(with_template(template), "generic")


CALLING = (
    "<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_ACTION = CALLING.replace("{% if add_gen", "<|im_start|>system\nWrite 'Action:'<|im_end|>\n{% if add_gen")


def named(**templates: str) -> HFTokenizer:
    """A tokenizer with several templates, as Command-R and Hermes have them."""
    listed = [{"name": name, "template": template} for name, template in templates.items()]
    return HFTokenizer(trained(CHATML_TOKENS).published.to_str(), {"chat_template": listed})


@pytest.mark.slow
def test_of_named_templates_tools_choose_the_one_for_tools_and_all_else_the_default() -> None:
    tokens = named(tool_use=CALLING, default=APPENDING, rag="{{ documents }}")
    renderer, user = get_renderer(tokens, "generic"), Message(role="user", content="u")
    [plain], [offered] = renderer.render([user]), renderer.render([user], tools=TOOLS[1:])
    assert tokens.decode(plain) == "<|im_start|>user\nu<|im_end|>\n"
    assert tokens.decode(offered).startswith('<|im_start|>system\n{"type": "function", "function": {"name": "add_2"')
    assert offered[-len(plain) :] == plain
    call = calling("chatml")
    assert [c.function.name for c in parse(renderer, renderer.turn(call)).message.tool_calls or []] == ["f"]
    turn, result = renderer.render([call, *results(call)], after=node(user, offered))
    assert tokens.decode(turn).startswith("<|im_start|>assistant\n<tool_call>")
    assert tokens.decode(result) == "\n<|im_start|>tool\nr0<|im_end|>\n"


def test_where_only_the_template_for_tools_rewrites_history_the_default_is_served_without_tools(
    caplog: pytest.LogCaptureFixture,
) -> None:
    renderer = get_renderer(named(default=APPENDING, tool_use=WITH_ACTION), "generic")
    assert "tools are refused" in caplog.text
    assert "'tool_use'" in caplog.text
    user = Message(role="user", content="u")
    assert renderer.tokenizer.decode(renderer.render([user])[0]) == "<|im_start|>user\nu<|im_end|>\n"
    with pytest.raises(RenderError, match="no place for tools"):
        renderer.render([user], tools=TOOLS)


def test_named_templates_without_a_default_are_named_in_the_refusal() -> None:
    with pytest.raises(ConfigError, match=r"'tool_use', 'rag' and none named 'default'.*model\.renderer="):
        get_renderer(named(tool_use=CALLING, rag=APPENDING), "generic")


def test_an_empty_template_is_refused_as_one() -> None:
    with pytest.raises(ConfigError, match="has an empty chat template"):
        get_renderer(named(default=""), "generic")


def test_todays_date_is_the_same_in_every_process_and_on_every_day() -> None:
    dated = "<|im_start|>system\n{{ strftime_now('%d %B %Y') }}<|im_end|>\n" + APPENDING
    renderer = get_renderer(named(default=dated), "generic")
    assert "26 July 2024" in renderer.tokenizer.decode(renderer.render([Message(role="user", content="u")])[0])
    gpt_oss = get_renderer(tokenizer("gpt-oss"), "gpt-oss")
    assert "date: 2024-07-26" in gpt_oss.tokenizer.decode(gpt_oss.render([Message(role="user", content="u")])[0])


PHI_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")
PHI_35 = (
    "{% for m in messages %}{% if m['role'] in ('system', 'user', 'assistant') %}{{ '<|' + m['role'] + '|>\\n' + "
    "m['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI_4_MINI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)


@pytest.mark.parametrize(("template", "line"), [(PHI_35, "\n"), (PHI_4_MINI, "")], ids=["phi-3.5", "phi-4-mini"])
def test_a_template_that_ends_every_conversation_with_the_same_token_is_served_without_it(
    template: str, line: str
) -> None:
    phi = support.with_template(trained(PHI_TOKENS), template, eos_token="<|endoftext|>")
    renderer = get_renderer(phi)
    assert renderer.name == "generic"
    assert [phi.decode([stop]) for stop in renderer.stop_token_ids] == ["<|end|>"]
    user, answer = Message(role="user", content="hi <|endoftext|>"), Message(role="assistant", content="yes")
    deltas = renderer.render([user, answer, user])
    assert not any(phi.special("<|endoftext|>") in ids for ids in deltas)
    asked = f"<|user|>{line}hi <|endoftext|><|end|>{line}"
    assert [phi.decode(ids) for ids in deltas] == [asked, f"<|assistant|>{line}yes<|end|>", f"{line}{asked}"]


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
@pytest.mark.parametrize("content", ["<think> x", " a<think>\n", "\x1c<think>\u2003", "\n </think>"])
def test_guarded_text_loses_the_white_space_that_added_tokens_take_along(side: str, content: str) -> None:
    """Phi-3's `<|user|>` took the line feed behind it along, but not where a user wrote `<think>`."""
    spec = json.loads(trained(PHI_TOKENS).source)
    for entry in spec["added_tokens"]:
        entry[side] = True
    phi = HFTokenizer(json.dumps(spec))
    guard = MarkupGuard(phi)
    rendered = "<|user|>\n{}<|end|>\n <|assistant|>\n"
    assert guard.text(content) != content
    assert guard.encode(rendered.format(guard.text(content))) == phi.encode_markup(rendered.format(content))


def test_a_template_that_drops_system_messages_causes_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    silent = APPENDING.replace(
        "%}<|im_start|>{{", "%}{% if m.role == 'system' %}{% continue %}{% endif %}<|im_start|>{{", 1
    )
    get_renderer(with_template(APPENDING), "generic")
    assert "system" not in caplog.text
    get_renderer(with_template(silent), "generic")
    assert "drops system messages" in caplog.text


def test_a_template_that_refuses_every_conversation_is_refused_with_its_reason_and_a_remedy() -> None:
    picky = "{% if messages[0].content != 'u' %}{{ raise_exception('only u') }}{% endif %}" + APPENDING
    with pytest.raises(ConfigError, match=r"none of 30 .*only u.*model\.renderer="):
        get_renderer(with_template(picky), "generic")


def test_an_end_token_that_only_assistants_write_is_no_tail() -> None:
    """Llama 2's and Mistral's turns end with the token that others put behind every conversation."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
        "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
    )
    plain = support.with_template(trained(("[INST]", "[/INST]", "</s>")), template, eos_token="</s>")
    renderer = get_renderer(plain, "generic")
    assert plain.decode(renderer.turn(Message(role="assistant", content="yes"))) == "yes</s>"


def test_the_generic_renderer_refuses_what_its_template_would_drop() -> None:
    renderer = get_renderer(with_template(APPENDING), "generic")
    with pytest.raises(RenderError, match="tool calls"):
        renderer.turn(calling("chatml"))
    with pytest.raises(RenderError, match="no place for tools"):
        renderer.render([Message(role="user", content="u")], tools=TOOLS)


@pytest.mark.parametrize("family", ["qwen2.5", "llama-3"])
@pytest.mark.slow
def test_the_generic_renderer_serves_the_families_whose_templates_append(family: str) -> None:
    renderer = get_renderer(tokenizer(family), "generic")
    call = Message(role="assistant", content=None, tool_calls=calling(family).tool_calls)
    read = parse(renderer, renderer.turn(call)).message
    assert [c.function.name for c in read.tool_calls or []] == ["f"]


@pytest.mark.slow
def test_the_generic_renderer_warns_where_a_template_would_drop_reasoning(caplog: pytest.LogCaptureFixture) -> None:
    renderer = get_renderer(tokenizer("qwen3"), "generic")
    assert "drops earlier reasoning" in caplog.text
    message = Message(role="assistant", content="a", reasoning_content="r")
    assert parse(renderer, renderer.turn(message)).message == message


@pytest.mark.slow
def test_a_check_says_what_appends_where_it_differs_and_which_parser_fits() -> None:
    rows = {row.question: row for row in check_renderer(tokenizer("qwen3"), count=10)}
    assert rows["renderer"].answer == "qwen3"
    assert rows["template append-only: tools"].ok
    assert rows["template append-only: reasoning"].answer == "no"
    assert "rendered anew it reads" in rows["template append-only: reasoning"].detail
    assert rows["parsers that fit the template"].answer == "hermes"
    assert rows["qwen3 equals the template: parallel calls"].ok
    told = rows["qwen3 equals the template: reasoning"]
    assert (told.answer, told.ok) == (ON_PURPOSE, None)
    assert "model.reasoning=strip" in told.detail
    assert "boundaries agree" in told.detail
    assert rows["qwen3 reads back its own tool call"].detail == "by the parser hermes"
    assert as_table(list(rows.values())).row_count == len(rows)


@pytest.mark.parametrize("family", ["smollm2", "mistral", "deepseek-v3", "deepseek-v4-thinking", "gemma-4", "gpt-oss"])
@pytest.mark.slow
def test_a_check_explains_every_wanted_difference_and_fails_nothing(family: str) -> None:
    model = with_its_template(family)
    rows = check_renderer(model, family, count=12)
    assert [row.question for row in rows if row.ok is False] == []
    wanted = [row for row in rows if row.answer == ON_PURPOSE]
    assert wanted
    assert all("template" in row.detail for row in wanted)


def with_its_template(family: str) -> HFTokenizer:
    collected = {
        "gpt-oss": "llama.cpp/openai-gpt-oss-120b",
        "gemma-4": "trl/gemma4_v5",
        "deepseek-v4-thinking": "llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731",
    }.get(family)
    if collected is None:
        return tokenizer(family)
    starts = next((token for token in tokenizer(family).added if token == "<bos>" or "begin\u2581of" in token), "")
    return support.with_template(tokenizer(family), published(collected), bos_token=starts)


@pytest.mark.parametrize(
    ("old", "new"),
    [("<|im_end|>", "<|im_end|>\n"), ("reasoning_content.strip", "reasoning_content.upper().strip")],
)
@pytest.mark.slow
def test_a_check_of_a_changed_template_fails_where_no_wanted_difference_explains_it(old: str, new: str) -> None:
    plain = tokenizer("qwen3")
    assert old in (plain.chat_template or "")
    changed = support.with_template(plain, (plain.chat_template or "").replace(old, new))
    failed = [row for row in check_renderer(changed, "qwen3", count=12) if row.ok is False]
    assert failed
    assert all("differ" in row.detail for row in failed)


def test_a_check_of_a_broken_template_reports_instead_of_raising() -> None:
    rows = check_renderer(with_template("{{ raise_exception('never') }}", ("<s>",)), count=3)
    assert rows[0].ok is False


MOONLIGHT = (
    "{%- for m in messages -%}{%- if loop.first and m['role'] != 'system' -%}<|im_system|>system<|im_middle|>"
    "You are a helpful assistant provided by Moonshot-AI.<|im_end|>{%- endif -%}<|im_{{ m['role'] }}|>{{ m['role'] }}"
    "<|im_middle|>{{ m['content'] }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)


@pytest.mark.slow
def test_moonlight_which_has_no_tools_is_served_by_its_own_template() -> None:
    tokens = ("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
    renderer = get_renderer(with_template(MOONLIGHT, tokens))
    assert renderer.name == "generic"
    [ids] = renderer.render([Message(role="user", content="hi")])
    assert renderer.tokenizer.decode(
        ids + renderer.generation_prompt(node(Message(role="user", content="hi"), ids))
    ) == (
        "<|im_system|>system<|im_middle|>You are a helpful assistant provided by Moonshot-AI.<|im_end|>"
        "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
