"""The tiny model: deterministic, loads as any other, and its tokenizer is fit for copying numbers."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.errors import InvalidInput
from agentrl.models import tiny

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "12 * 34"}}\n</tool_call>'
TEXTS = [
    f"<|im_start|>user\nWhat is {n} * 34?<|im_end|>\n<|im_start|>assistant\n{CALL}<|im_end|>\n"
    f"<|im_start|>user\n<tool_response>\n{n * 34}\n</tool_response><|im_end|>\n"
    f"<|im_start|>assistant\n{n * 34}<|im_end|>\n"
    for n in range(50)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny") / "model", TEXTS, seed=3)


def test_the_same_texts_and_seed_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = tiny.build(tmp_path / "model", TEXTS, seed=3)
    other = tiny.build(tmp_path / "other", TEXTS, seed=4)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name
    assert (folder / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    assert (folder / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def test_it_has_about_half_a_million_parameters_and_transformers_loads_it(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 400_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 600_000
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_no_token_reaches_from_the_generation_prompt_into_the_turn(tmp_path: Path) -> None:
    """Lines of JSON in a prompt taught the tokenizer a newline with a brace, which then joined the two."""
    lines = "\n".join(f'{{"name": "tool {n}"}}' for n in range(200))
    texts = [f"<|im_start|>user\n{lines}<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"] * 20
    tokenizer = _tokenizer(tiny.build(tmp_path / "model", texts))
    assert len(tokenizer.encode('x\n{"name": "tool ')) <= 3
    prompt, turn = "<|im_start|>assistant\n", '{"name": "tool 3"}<|im_end|>'
    assert tokenizer.encode(prompt + turn) == tokenizer.encode(prompt) + tokenizer.encode(turn)


def test_what_one_text_has_of_its_own_is_spelled_as_in_texts_that_were_not_seen(tmp_path: Path) -> None:
    """Whole prompts became one token each, and nothing that was learned of them held for others."""
    draw = random.Random(0)
    names = ["".join(draw.choices("abcdefghijklmnop", k=6)) for _ in range(400)]
    texts = [
        f"<|im_start|>user\n{name} asks for the same greeting again.<|im_end|>\n"
        f"<|im_start|>assistant\nhello {name}<|im_end|>\n"
        for name in names
    ]
    tokenizer = _tokenizer(tiny.build(tmp_path / "model", texts[:200]))
    seen, other = ([len(tokenizer.encode(name)) for name in half] for half in (names[:200], names[200:]))
    assert abs(fmean(seen) - fmean(other)) < 0.2
    assert min(seen) > 2
    assert len(tokenizer.encode(" asks for the same greeting again.")) <= 3


@given(st.text())
@settings(max_examples=200)
@pytest.mark.slow
def test_any_text_encodes_and_decodes(folder: Path, text: str) -> None:
    tokenizer = _tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
@given(st.integers(0, 10**12), st.sampled_from(["", " ", "x", "\n", "-", '"']))
def test_each_digit_is_a_token_of_its_own_wherever_it_stands(folder: Path, number: int, before: str) -> None:
    tokenizer = _tokenizer(folder)
    pieces = [tokenizer.decode([index]) for index in tokenizer.encode(f"{before}{number} ")]
    assert [piece for piece in pieces if any(c.isdigit() for c in piece)] == list(str(number))


def test_tool_call_markup_is_a_few_tokens_and_the_generation_prompt_stands_alone(folder: Path) -> None:
    tokenizer = _tokenizer(folder)
    assert len(tokenizer.encode(CALL)) <= 14
    prompt = tokenizer.encode("<|im_start|>assistant\n")
    for text in ("34", CALL, "What is"):
        assert tokenizer.encode(f"<|im_start|>assistant\n{text}")[: len(prompt)] == prompt


def test_special_tokens_are_single_and_marked_as_special(folder: Path) -> None:
    tokenizer = _tokenizer(folder)
    for token in tiny.SPECIAL_TOKENS:
        (index,) = tokenizer.encode(token)
        assert tokenizer.added_tokens_decoder[index].special


def test_the_chat_template_is_hermes_over_chatml(folder: Path) -> None:
    messages = [
        {"role": "user", "content": "What is 1 * 34?"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "calculate", "arguments": {"expression": "12 * 34"}}}],
        },
        {"role": "tool", "content": "34"},
        {"role": "assistant", "content": "34"},
    ]
    assert _tokenizer(folder).apply_chat_template(messages, tokenize=False) == TEXTS[1]
    assert tiny.render(messages) == TEXTS[1]


@pytest.mark.slow
def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(InvalidInput, match="vocab=200"):
        tiny.build_tokenizer(TEXTS, vocab=200)


_LOADED: dict[Path, object] = {}


def _tokenizer(folder: Path):  # type: ignore[no-untyped-def]
    return _LOADED.setdefault(folder, AutoTokenizer.from_pretrained(folder))


def test_long_conversations_get_twice_the_vocabulary_and_short_ones_the_common_shape() -> None:
    short, long = "a question and its answer", "a policy, tools and their descriptions " * 250
    assert tiny.shape_for([]) == tiny.shape_for([short] * 9) == tiny.TinyShape()
    assert tiny.shape_for([long, long]).vocab == 2 * tiny.TinyShape().vocab
    assert tiny.shape_for([long] + [short] * 9) == tiny.TinyShape(), "they are long on average"
