"""What belongs to one tokenizer is read from all files of its folder, as transformers reads them."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentrl.errors import ConfigError, InvalidInput
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.sessions.renderers import get_renderer, parse
from agentrl.sessions.renderers.proof.check import check_renderer
from agentrl.sessions.renderers.template import template_whole
from agentrl.types import Message
from tests.sessions.renderers.support import trained, with_template

PLAIN = trained(("<|a|>", "<|b|>"))
FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
SIZE = PLAIN.published.get_vocab_size(with_added_tokens=True)
TURNS = """{% for m in messages %}<|a|>{{ m.role }}
{{ m.content }}<|b|>
{% endfor %}{% if add_generation_prompt %}<|a|>assistant
{% endif %}"""
USER = Message(role="user", content="u")


def folder(path: Path, **files: object) -> Path:
    (path / "tokenizer.json").write_text(PLAIN.source)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {str(SIZE): {"content": "<|end|>", **FLAGS}}}},
        {"tokenizer_config": {"eos_token": "<|end|>"}},
        {"tokenizer_config": {"extra_special_tokens": ["<|end|>"]}},
        {"tokenizer_config": {}, "special_tokens_map": {"eos_token": {"content": "<|end|>", **FLAGS}}},
        {"tokenizer_config": {}, "added_tokens": {"<|end|>": SIZE}},
    ],
    ids=["decoder", "named", "listed", "special_tokens_map", "added_tokens"],
)
def test_added_tokens_that_other_files_have_are_those_that_transformers_adds(
    tmp_path: Path, files: dict[str, object]
) -> None:
    from transformers import PreTrainedTokenizerFast

    path = folder(tmp_path, **files)
    ours, theirs = load_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    text = "<|a|>user what<|end|> is<|b|>"
    assert ours.encode_markup(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.special("<|end|>") == SIZE
    assert SIZE not in ours.encode(text), "a user's text does not end a turn"


def test_an_added_token_whose_id_can_not_be_kept_is_refused(tmp_path: Path) -> None:
    decoder = {str(SIZE + 7): {"content": "<|end|>", **FLAGS}}
    with pytest.raises(InvalidInput, match=rf"'<\|end\|>' has the id {SIZE + 7} .* and {SIZE} behind"):
        load_tokenizer(folder(tmp_path, tokenizer_config={"added_tokens_decoder": decoder}))


@pytest.mark.parametrize(
    ("written", "files"),
    [
        ("{{ bos_token }}", {"special_tokens_map": {"bos_token": {"content": "<|a|>", **FLAGS}}}),
        ("{{ cls_token }}", {"tokenizer_config": {"cls_token": "<|a|>", "add_cls_token": True}}),
        ("{{ sep_token }}", {"tokenizer_config": {"sep_token": {"content": "<|a|>", "__type": "AddedToken"}}}),
        ("{{ image_token }}", {"tokenizer_config": {"image_token": "<|a|>"}}),
        ("{{ picture }}", {"tokenizer_config": {"extra_special_tokens": {"picture": "<|a|>"}}}),
        ("{% if documents is none %}<|a|>{% endif %}", {}),
        ("{%+ generation -%}<|a|>{%+ endgeneration %}", {}),
    ],
)
def test_a_template_is_given_what_transformers_gives_it(
    tmp_path: Path, written: str, files: dict[str, dict[str, object]]
) -> None:
    """Tokens by other names than four, and those of special_tokens_map.json, were written as nothing."""
    from transformers import PreTrainedTokenizerFast

    template = "{% for m in messages %}" + written + "{{ m.content }}<|b|>{% endfor %}"
    path = folder(tmp_path, **{"tokenizer_config": {}, **files})
    (path / "chat_template.jinja").write_text(template)
    ours = template_whole(load_tokenizer(path))([USER], (), False)
    theirs = PreTrainedTokenizerFast.from_pretrained(path)
    assert ours == theirs.apply_chat_template([{"role": "user", "content": "u"}], return_dict=False)
    assert PLAIN.decode(ours) == "<|a|>u<|b|>"


def test_a_processors_template_is_used_where_there_is_no_other(tmp_path: Path) -> None:
    folder(tmp_path, chat_template={"chat_template": "processor's"}, tokenizer_config={})
    assert load_tokenizer(tmp_path).chat_template == "processor's"
    (tmp_path / "beside").mkdir()
    both = folder(tmp_path / "beside", chat_template={"chat_template": "p"}, tokenizer_config={"chat_template": "own"})
    assert load_tokenizer(both).chat_template == "own"
    (tmp_path / "old").mkdir()
    old = folder(tmp_path / "old", processor_config={"chat_template": "old"}, tokenizer_config={})
    assert load_tokenizer(old).chat_template == "old"


@pytest.mark.parametrize(
    "templates", [3, ["t"], [{"template": "t"}], {"default": None}, [{"name": 1, "template": "t"}]]
)
@pytest.mark.parametrize("name", ["tokenizer_config", "chat_template"])
def test_chat_templates_that_are_no_texts_are_refused_by_their_file(tmp_path: Path, name: str, templates: Any) -> None:
    path = folder(tmp_path, **{name: {"chat_template": templates}})
    with pytest.raises(InvalidInput, match=rf"{name}\.json': chat_template=.* is neither a text"):
        load_tokenizer(path)


def test_a_chat_template_in_another_encoding_is_refused_by_its_file(tmp_path: Path) -> None:
    (folder(tmp_path) / "chat_template.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidInput, match=r"chat_template\.jinja' is no text in UTF-8"):
        load_tokenizer(tmp_path)


def test_a_length_that_was_saved_with_a_tokenizer_neither_cuts_nor_fills_texts(tmp_path: Path) -> None:
    """Who trains classifiers saves them so; prompts were cut at that many tokens, without a word."""
    backend = Tokenizer.from_str(PLAIN.source)
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    limited = load_tokenizer(tmp_path)
    for text in ("what is the weather", "what <|b|> is the weather", "a"):
        assert limited.encode(text) == PLAIN.encode(text)
        assert limited.encode_markup(text) == PLAIN.encode_markup(text)
    assert json.loads(limited.source) == json.loads(PLAIN.source)


def test_merges_that_were_dropped_by_chance_in_training_are_all_made(tmp_path: Path) -> None:
    spec = json.loads(PLAIN.source)
    spec["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    text = "what is the weather"
    assert load_tokenizer(tmp_path).encode(text) == PLAIN.encode(text)


def test_a_turn_ends_with_each_of_the_tokens_that_the_models_files_list(tmp_path: Path) -> None:
    more = {"added_tokens_decoder": {str(SIZE): {"content": "<|end|>", **FLAGS}}, "chat_template": TURNS}
    start, end = PLAIN.special("<|a|>"), PLAIN.special("<|b|>")
    folder(tmp_path, tokenizer_config=more, generation_config={"eos_token_id": [end, SIZE, 99999, 300]})
    renderer = get_renderer(tmp_path)
    assert renderer.stop_token_ids == (end, SIZE), "what is no special token is left out"
    turn = [*renderer.tokenizer.encode("42"), SIZE]
    assert parse(renderer, turn).message.text == "42"
    node = renderer.render([USER])[0]
    assert node[0] == start


def test_a_tokenizer_of_a_larger_vocabulary_than_the_models_is_told_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its turns could never end: no embedding stands for the token that ends them."""
    folder(tmp_path, tokenizer_config={"chat_template": TURNS}, config={"vocab_size": PLAIN.vocab_size})
    get_renderer(tmp_path)
    assert caplog.messages == []
    (tmp_path / "few").mkdir()
    few = {"chat_template": TURNS, "added_tokens_decoder": {str(SIZE): {"content": "<|pad|>", **FLAGS}}}
    get_renderer(folder(tmp_path / "few", tokenizer_config=few, config={"vocab_size": SIZE}))
    assert f"has {SIZE + 1} tokens, and the model {SIZE} (vocab_size in config.json)" in caplog.text
    (tmp_path / "end").mkdir()
    end = PLAIN.special("<|b|>")
    other = folder(
        tmp_path / "end", tokenizer_config={"chat_template": TURNS}, config={"text_config": {"vocab_size": end}}
    )
    with pytest.raises(ConfigError, match=rf"the token '.*' \(\d+\), and the model in .* has {end} tokens"):
        get_renderer(other)


def test_what_a_format_writes_within_a_turn_does_not_end_it() -> None:
    thinks = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    marks = ("<|a|>", "<|b|>", "<think>", "</think>", "<|c|>")
    made = with_template(trained(marks), TURNS.replace("{{ m.content }}", thinks))
    made.end_tokens = (made.special("</think>"), made.special("<|c|>"))
    assert get_renderer(made).stop_token_ids == (made.special("<|b|>"), made.special("<|c|>"))


ENDLESS = """{% for m in messages %}{% if m.role == 'user' %}<|a|>{{ m.content }}
ANSWER:{% else %}{{ ' ' + m.content }}
{% endif %}{% endfor %}"""


def test_a_template_without_an_end_of_a_turn_is_served_with_one_that_is_named(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": ENDLESS})
    with pytest.raises(ConfigError, match=r"model\.stop= names the token"):
        get_renderer(tmp_path, "generic")
    with pytest.raises(ConfigError, match=r"model.stop='<\|bb\|>' is no special token.*'<\|b\|>'"):
        get_renderer(tmp_path, "generic", "<|bb|>")
    renderer = get_renderer(tmp_path, "generic", "<|b|>")
    assert renderer.stop_token_ids == (PLAIN.special("<|b|>"),)
    turn = renderer.turn(Message(role="assistant", content="42"))
    assert PLAIN.decode(turn) == " 42<|b|>"
    whole = renderer.render([USER, Message(role="assistant", content="42"), USER])
    text = PLAIN.decode([token for delta in whole for token in delta])
    assert text == "<|a|>u\nANSWER: 42<|b|>\n<|a|>u\nANSWER:"


def test_the_check_takes_the_end_that_a_run_would_name(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": ENDLESS})
    faults = {stop: [row for row in check_renderer(tmp_path, count=4, stop=stop) if row.ok is False] for stop in STOPS}
    assert faults["<|b|>"] == []
    assert faults[""] != []


STOPS = ("", "<|b|>")
BLANK = """{% for m in messages %}<|a|>{{ m.role }}: {{ m.content }}<|b|>{% endfor %}\
{% if add_generation_prompt %}<|a|>assistant: {% endif %}"""


def test_a_prompt_may_end_in_a_blank(tmp_path: Path) -> None:
    """The template's blank and the answer's first word are one token when they are encoded together."""
    folder(tmp_path, tokenizer_config={"chat_template": BLANK})
    renderer = get_renderer(tmp_path)
    assert renderer.name == "generic"
    prompt, turn = renderer.generation_prompt(None), renderer.turn(Message(role="assistant", content="what"))
    assert PLAIN.decode(prompt).endswith("assistant: ")
    assert PLAIN.decode(turn) == "what<|b|>"
    assert parse(renderer, turn).message.text == "what"


RANKS = b"\n".join(base64.b64encode(bytes([byte])) + f" {byte}".encode() for byte in range(256))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.model", b"\n\x0b\n\x05<unk>\x15\x00", "a SentencePiece model .tokenizer.model."),
        ("tokenizer.model", RANKS, "a tiktoken vocabulary .tokenizer.model."),
        ("tekken.json", b"{}", "a tekken vocabulary .tekken.json."),
        ("vocab.json", b"{}", "a vocabulary .vocab.json."),
    ],
)
def test_a_tokenizer_of_another_format_is_named_with_the_command_that_converts_it(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=f"no tokenizer.json there, but {says}; convert it once with python -c"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tiktoken.model", RANKS, "a tiktoken vocabulary .tiktoken.model."),
        ("qwen.tiktoken", RANKS, "a tiktoken vocabulary .qwen.tiktoken."),
        ("sentencepiece.bpe.model", b"\n\x0b\n\x05<unk>\x15\x00", "a SentencePiece model .sentencepiece.bpe.model."),
    ],
)
def test_no_command_is_named_that_would_make_another_tokenizer_of_the_files(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    """transformers made one of two tokens of Qwen's ranks, and one of eleven of XGLM's pieces."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=f"{says}, whose rules only its model's own code has, which is not run"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_with_code_of_its_own_is_refused_without_a_command_that_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(RANKS)
    config = {"auto_map": {"AutoTokenizer": ["tokenization_odd.OddTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=r"only its model's own code has \(auto_map in tokenizer_config.json\)"):
        load_tokenizer(tmp_path)


def test_the_size_of_a_vocabulary_is_one_more_than_its_largest_id() -> None:
    """It counted one token more, which an engine with as many rows as tokens would have been asked for."""
    mark = {"id": 2, "content": "<|x|>", **FLAGS}
    for vocab, entries, size in (({"a": 0, "b": 7}, [], 8), ({"a": 0, "b": 1}, [], 2), ({"a": 0, "b": 1}, [mark], 3)):
        model = {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}
        made = HFTokenizer(json.dumps({"version": "1.0", "model": model, "added_tokens": entries}))
        assert made.vocab_size == size
    assert PLAIN.vocab_size == SIZE


@pytest.mark.slow
def test_the_command_that_converts_a_tokenizer_makes_one_that_encodes_as_the_files_say(tmp_path: Path) -> None:
    """`AutoTokenizer` splits runs of blanks otherwise than SentencePiece does, and makes no file of tekken at all."""
    spm = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    (tmp_path / "corpus.txt").write_text("\n".join(f"what is {n} plus   {n * n}, and  why?" for n in range(200)))
    trained = {"input": str(tmp_path / "corpus.txt"), "vocab_size": 340, "byte_fallback": True, "minloglevel": 2}
    spm.SentencePieceTrainer.train(model_prefix=str(tmp_path / "tokenizer"), model_type="bpe", **trained)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(InvalidInput) as refused:
        load_tokenizer(tmp_path)
    words = shlex.split(str(refused.value).partition("convert it once with ")[2])[1:4]
    subprocess.run([sys.executable, *words], check=True, timeout=120)
    theirs = spm.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    for text in ("what is 3 plus 9", "  two  blanks and\n\nlines\t", "naïve 東京", " "):
        assert load_tokenizer(tmp_path).encode(text) == theirs.encode(text)
