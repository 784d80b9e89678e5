"""Tokenizers of transformers behind our protocol: text stays text, bytes stay bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import InvalidInput
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.types import Tokenizer
from tests.sessions.renderers.support import CHATML_TOKENS, tokenizer, trained

SMALL = trained(CHATML_TOKENS)


def test_it_satisfies_the_protocol() -> None:
    assert isinstance(SMALL, Tokenizer)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=6), st.sampled_from([*CHATML_TOKENS, "<|", "im_end", "|>"])), max_size=8))
@pytest.mark.slow
def test_text_comes_back_and_holds_no_special_token_whatever_it_says(pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = SMALL.encode(text)
    assert SMALL.decode(ids) == text
    assert not set(ids) & set(SMALL.added.values())
    assert b"".join(map(SMALL.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("length", [1, 5000])
def test_half_of_a_surrogate_pair_is_replaced_as_in_a_message(length: int) -> None:
    """JSON may hold it as an escape, so arguments of calls and tools' schemas bring it to a template."""
    assert SMALL.encode("x" * length + "\ud83d") == SMALL.encode("x" * length + "\ufffd")
    assert SMALL.encode_markup("<|im_end|>" * length + "\ud83d") == SMALL.encode_markup(
        "<|im_end|>" * length + "\ufffd"
    )


def sentencepiece(added: tuple[str, ...], merges: list[tuple[str, str]], *, legacy: bool = False) -> HFTokenizer:
    """A tokenizer as Gemma's: spaces are spelt \u2581, and its added tokens are in the vocabulary and its merges."""
    pieces = ["<unk>", *map(chr, range(33, 127)), "\u2581", *(a + b for a, b in merges), *added]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    written = [" ".join(pair) for pair in merges] if legacy else merges
    bpe = {"type": "BPE", "vocab": vocab, "merges": written, "unk_token": "<unk>"}
    return built(added, vocab, bpe, space)


def built(added: tuple[str, ...], ids: dict[str, int], model: dict[str, object], normalizer: object) -> HFTokenizer:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    spec = {
        "version": "1.0",
        "added_tokens": [{"id": ids[token], "content": token, **flags} for token in added],
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "Fuse"}]},
        "model": model,
    }
    return HFTokenizer(json.dumps(spec))


SPACES = ("\u2581\u2581", "\u2581\u2581\u2581")
TAG = [("<", "b"), ("<b", ">"), ("<b>", "x"), ("\u2581", "\u2581"), ("\u2581\u2581", "\u2581")]


@pytest.mark.parametrize("legacy", [False, True], ids=["pairs", "strings"])
def test_runs_of_spaces_are_no_markup_where_a_tokenizer_adds_them_as_tokens(legacy: bool) -> None:
    """Two spaces in a message crashed Gemma's tokenizers: their vocabulary lost the token that a merge makes."""
    gemma = sentencepiece((*SPACES, "<b>"), TAG, legacy=legacy)
    assert gemma.encode("a  b   c") == gemma.encode_markup("a  b   c")
    assert set(gemma.added) == {"<b>"}
    spelt = gemma.encode("<b>  x")
    assert gemma.decode(spelt) == "<b>  x"
    assert gemma.special("<b>") not in spelt


GEMMA = sentencepiece((*SPACES, "<b>"), TAG)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["<b>", "<b", ">", "x", "<b>x", " ", "  ", "   ", "a"]), max_size=8))
def test_no_merge_makes_a_special_token_out_of_text(pieces: list[str]) -> None:
    gemma, text = GEMMA, "".join(pieces)
    assert gemma.decode(gemma.encode(text)) == text
    assert not set(gemma.encode(text)) & set(gemma.added.values())


def test_a_merge_with_a_continuation_prefix_that_makes_a_special_token_goes_with_it() -> None:
    pieces = ("<unk>", "<", "##b", "##>", "<b", "<b>", "b", ">")
    ids = {piece: index for index, piece in enumerate(pieces)}
    merges = [("<", "##b"), ("<b", "##>")]
    model = {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": "<unk>", "continuing_subword_prefix": "##"}
    assert built(("<b>",), ids, model, None).encode("<b>") == [ids["<b"], ids["##>"]]


def test_a_special_token_in_a_unigram_vocabulary_does_not_come_out_of_text() -> None:
    pieces = ["<unk>", "</s>", "<", "/", "s", ">", "\u2581", "\u2581\u2581"]
    ids = {piece: index for index, piece in enumerate(pieces)}
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[piece, 0.0 if piece == "</s>" else -1.0] for piece in pieces]}
    t5 = built(("</s>",), ids, model, None)
    assert t5.encode_markup("</s>") == [t5.special("</s>")]
    assert t5.encode("</s>") == [ids[piece] for piece in "</s>"]


def test_trusted_markup_becomes_special_tokens() -> None:
    assert SMALL.encode_markup("<|im_start|>user") == [SMALL.special("<|im_start|>"), *SMALL.encode("user")]
    assert SMALL.decode([SMALL.special("<|im_end|>")]) == "<|im_end|>"


def test_a_tokens_bytes_may_be_part_of_a_character() -> None:
    pieces = [SMALL.token_bytes(index) for index in SMALL.encode("🎉")]
    assert len(pieces) > 1
    assert b"".join(pieces) == "🎉".encode()
    assert SMALL.token_bytes(10**9) == SMALL.token_bytes(-1) == b""


def test_an_unknown_special_token_names_its_neighbour() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean '<\|im_end\|>'"):
        SMALL.special("<|im_ends|>")


def test_a_folder_without_tokenizer_json_is_named(tmp_path) -> None:
    with pytest.raises(InvalidInput, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InvalidInput, match="can't be read"):
        load_tokenizer(tmp_path)


def test_a_loaded_tokenizer_is_taken_as_it_is() -> None:
    assert load_tokenizer(SMALL) is SMALL


def test_a_tokenizer_of_transformers_is_taken_with_its_template_and_special_tokens() -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=SMALL.published, eos_token="<|im_end|>")
    theirs.chat_template = "{{ eos_token }}"
    ours = load_tokenizer(theirs)
    assert ours.chat_template == "{{ eos_token }}"
    assert ours.config["eos_token"] == "<|im_end|>"
    assert ours.encode("hello") == SMALL.encode("hello")


def test_a_template_beside_the_tokenizer_wins(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text(SMALL.published.to_str())
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "chat_template.jinja").write_text("new")
    assert load_tokenizer(tmp_path).chat_template == "new"


def test_named_templates_are_read_from_every_form_that_they_are_kept_in(tmp_path) -> None:
    both = {"default": "plain", "tool_use": "tools"}
    listed = [{"name": name, "template": template} for name, template in both.items()]
    for kept in (both, listed, listed[::-1]):
        read = HFTokenizer(SMALL.source, {"chat_template": kept})
        assert (read.chat_template, read.tool_template) == ("plain", "tools")
    (tmp_path / "tokenizer.json").write_text(SMALL.source)
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    read = load_tokenizer(tmp_path)
    assert read.templates == both
    assert (read.chat_template, read.tool_template) == ("plain", "tools")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2.5", "llama-3", "mistral", "deepseek-v3", "smollm2"])
def test_the_real_ones_encode_plain_text_as_published(family: str) -> None:
    real: HFTokenizer = tokenizer(family)
    for text in ("hello world", "naïve café 東京 مرحبا 🎉", "x = {'a': [1, 2]}\n\n\tif True:", " 12345 don't"):
        assert real.encode(text) == real.encode_markup(text)
        assert b"".join(map(real.token_bytes, real.encode(text))).decode() == text == real.decode(real.encode(text))
