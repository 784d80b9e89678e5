"""A tiny Llama with a tokenizer of its own, built on the spot: no download, seconds to train, a normal folder.

It is what `model=tiny` trains, so every choice serves one aim: half a million parameters on a CPU shall learn
to call a tool and to copy what it answers.

- Digits are always single tokens, each with one embedding wherever it stands: copying a number is then
  copying tokens, which two attention layers can learn (an induction head).
- Everything else is byte-level BPE without word boundaries, so that recurring markup and phrases become one
  token each and contexts stay short. Any text encodes, since all 256 bytes are in the vocabulary.
- Tied embeddings: reading a token and writing it share their vector, which is again what copying needs.
- Rotary positions turn fast (theta 200): most contexts are short, and telling a token from its neighbour, which copying
  begins with, is learned in two thirds of the steps that theta 10,000 takes.
- Two key-value heads for four query heads halve the cache, which is what decoding on a CPU waits for.

Given up: a tokenizer that is any good on other texts than those it was made from. Long conversations get a shape of
their own (`FOR_LONG`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.common.scratch import write_folder
from agentrl.errors import InvalidInput

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (ENDOFTEXT, IM_START, IM_END, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

SEEN_IN = 10
"""A token of more than a byte is seen in at least one place for each so many texts."""

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with \
function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n\
</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif not (message.role == 'system' and loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""ChatML with tools in the Hermes manner, as Qwen 2.5 publishes it."""


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """A conversation as the tiny model's template writes it, special tokens included: text for `build`."""
    rendered: str = _template().render(messages=messages, tools=tools, add_generation_prompt=False)
    return rendered


@functools.cache
def _template() -> Any:
    """Compiled once: to do so for each of two hundred demonstrations took four fifths of the time to make a model."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE)


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The tiny model's size; the default has about half a million parameters."""

    vocab: int = 1024
    """Tokens at most: 256 bytes, the special tokens, and what merges the texts give."""
    layers: int = 3
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 256
    context: int = 2048
    rope_theta: float = 200.0


LONG = 8000
"""Characters of a conversation, on average, beyond which a model is shaped for long ones."""
FOR_LONG = TinyShape(vocab=2048, rope_theta=10_000.0)
"""More is merged, so that a conversation has half of the tokens or fewer, and rotary positions turn slowly, so that
what stands hundreds of tokens before is found by its content. `env=retail` copies no number without them in 200 steps
of imitation."""


def shape_for(texts: Sequence[str]) -> TinyShape:
    """Return the shape of a model that is to read such conversations."""
    return FOR_LONG if sum(map(len, texts)) > LONG * len(texts) else TinyShape()


def build(path: Path, texts: Iterable[str], *, seed: int = 0, shape: TinyShape | None = None) -> Path:
    """Make the tiny model and its tokenizer, and save both as a Hugging Face folder.

    The same texts, seed and shape give the same bytes.

    Args:
        path: the folder to write; it is written beside and renamed, and replaces what was there.
        texts: what the tokenizer is made from, special tokens written out (rendered demonstrations).
        seed: of the random weights.
        shape: the model's size.
    """
    shape = shape or TinyShape()
    tokenizer = build_tokenizer(texts, shape.vocab, shape.context)
    return save_parts(path, tokenizer.save_pretrained, build_model(tokenizer, seed=seed, shape=shape).save_pretrained)


def save_parts(path: Path, *parts: Callable[[Path], object]) -> Path:
    """Have tokenizer, model and what else there is written into a folder, beside and renamed; returns it."""
    with write_folder(path) as beside:
        for part in parts:
            part(beside)
    return path


_ROLE_LINE = r"\A(?:system|user|assistant)\n"
"""A piece of its own: no token may reach from the generation prompt ("assistant" and a newline) into the turn after
it."""


def build_tokenizer(
    texts: Iterable[str],
    vocab: int = 1024,
    context: int = 2048,
    special: Sequence[str] = (),
    template: str = CHAT_TEMPLATE,
) -> Any:
    """A byte-level BPE tokenizer from texts, as a transformers fast tokenizer.

    What is merged into one token has been seen in a tenth as many places as there are texts: what all tasks share is
    short, and what one task has of its own (a name, a number) is spelled alike in tasks that were seen and in others.

    Args:
        texts: conversations, special tokens written out.
        vocab: tokens at most.
        context: the longest path.
        special: further special tokens.
        template: the chat template.

    Raises:
        InvalidInput: `vocab` has no room for the 256 bytes and the special tokens.
    """
    markup = [*SPECIAL_TOKENS, *special]
    least = 256 + len(markup)
    if vocab < least:
        raise InvalidInput(f"vocab={vocab} is too small: the 256 bytes and {len(markup)} tokens need {least}")
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = list(texts)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_ROLE_LINE), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=max(2, len(texts) // SEEN_IN),
        special_tokens=markup,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=64,
        show_progress=False,
    )
    between = re.compile("|".join(map(re.escape, markup)))
    raw.train_from_iterator((piece for text in texts for piece in between.split(text) if piece), trainer)
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=IM_END,
        pad_token=ENDOFTEXT,
        additional_special_tokens=markup,
        chat_template=template,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Any, *, seed: int = 0, shape: TinyShape | None = None) -> Any:
    """A `LlamaForCausalLM` with random weights that fits the tokenizer."""
    import torch
    from transformers import LlamaForCausalLM

    config = language_config(tokenizer, shape or TinyShape())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def language_config(tokenizer: Any, shape: TinyShape) -> Any:
    """The `LlamaConfig` of a shape that fits the tokenizer."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(ENDOFTEXT),
        dtype="float32",
    )
