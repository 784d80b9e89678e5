"""Which renderer serves which family: the table of docs/renderers.md, written by this module as a script.

Templates are those that other projects collect (see `published`), or as short as shows the format (`minimal`);
tokenizers are the real ones where a package has them, else the family's special tokens on a small one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.families.generic import NO_TOOLS, UNREADABLE, GenericRenderer, unproven
from agentrl.sessions.renderers.proof.agreement import TrialVerdict, agreements
from agentrl.sessions.renderers.proof.markers import MarkerCheck, read_back
from agentrl.sessions.renderers.proof.reading import misread
from tests.sessions.renderers import minimal
from tests.sessions.renderers.published import published
from tests.sessions.renderers.support import tokenizer, trained, with_template

DOCS = Path(__file__).parents[3] / "docs" / "renderers.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
_MARKS = re.compile(
    r"<\|[^|>\s'\"{}]+\|>|<\|[a-z_]+>|<[a-z_]+\|>|\[/?(?:gMASK|[A-Z]+(?:_[A-Z]+)*)\]|\]~!?b\]|\]~!b\[|\[e~\[|"
    "<\uff5c[^\uff5c>\\s'\"{}]+\uff5c>|</?(?:think|tool_call|tool_response|arg_key|arg_value|[a-z]+_of_turn|sop|"
    "minimax:tool_call|function_calls|tool_calls)>"
)


@dataclass(frozen=True)
class Model:
    """A model family.

    Attributes:
        name: what its publisher calls it.
        template: "llama.cpp/NAME" or "trl/NAME" (see `published`), or a constant's name in `minimal`.
        real: the tokenizer out of a package, by the name that `support.tokenizer` knows; "" for none.
        bos: what its configuration names so.
        eos: likewise.
        also: special tokens that its template doesn't show.
        default: the template named "default", where `template` is the one named "tool_use".
    """

    name: str
    template: str
    real: str = ""
    bos: str = ""
    eos: str = ""
    also: tuple[str, ...] = ()
    default: str = ""

    def tokenizer(self) -> HFTokenizer:
        """Its tokenizer, with its template."""
        text = _template(self.template)
        config = {key: value for key, value in (("bos_token", self.bos), ("eos_token", self.eos)) if value}
        marks = tuple(dict.fromkeys([*_MARKS.findall(text), *config.values(), *self.also]))
        plain = tokenizer(self.real) if self.real else trained(marks)
        if self.default:
            named = {"default": _template(self.default), "tool_use": text}
            return HFTokenizer(plain.published.to_str(), {**plain.config, **config, "chat_template": named})
        return with_template(plain, text, **config)


def _template(name: str) -> str:
    return published(name) if "/" in name else str(getattr(minimal, name))


_IM = ("<|im_start|>", "<|im_end|>")
_CHATML = {"eos": "<|im_end|>", "also": (*_IM, "<|endoftext|>")}
_DEEPSEEK = {"bos": "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "eos": "<\uff5cend\u2581of\u2581sentence\uff5c>"}
_LLAMA = {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>"}
_MISTRAL = {"bos": "<s>", "eos": "</s>", "also": ("[INST]", "[/INST]", "[TOOL_CALLS]")}
_GLM = {
    "eos": "<|endoftext|>",
    "also": ("[gMASK]", "<sop>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>",
             "<think>", "</think>"),
}  # fmt: skip

MODELS: tuple[Model, ...] = (
    Model("SmolLM2", "", "smollm2"),
    Model("SmolLM3", "llama.cpp/HuggingFaceTB-SmolLM3-3B", **_CHATML),
    Model("Qwen 2.5", "llama.cpp/Qwen-Qwen2.5-7B-Instruct", "qwen2.5"),
    Model("Qwen 2.5 VL", "trl/qwen2_5_vl", "qwen2.5"),
    Model("QwQ 32B", "QWQ", "qwen3"),
    Model("Qwen 3", "llama.cpp/Qwen-Qwen3-0.6B", "qwen3"),
    Model("Qwen 3 2507", "trl/qwen3_instruct_2507", "qwen3"),
    Model("Qwen 3 VL", "trl/qwen3_vl", "qwen3"),
    Model("Qwen 3 Coder", "llama.cpp/Qwen3-Coder", "qwen3"),
    Model("Qwen 3.5", "llama.cpp/Qwen3.5-4B", "qwen3"),
    Model("Qwen 3.6", "trl/qwen3_6", "qwen3"),
    Model("Llama 2", "LLAMA_2", bos="<s>", eos="</s>"),
    Model("Llama 3", "trl/llama3", "llama-3", **_LLAMA),
    Model("Llama 3.1", "llama.cpp/meta-llama-Llama-3.1-8B-Instruct", "llama-3", **_LLAMA),
    Model("Llama 3.2", "llama.cpp/meta-llama-Llama-3.2-3B-Instruct", "llama-3", **_LLAMA),
    Model("Llama 3.3", "llama.cpp/meta-llama-Llama-3.3-70B-Instruct", "llama-3", **_LLAMA),
    Model("Llama 4", "LLAMA_4", "llama-4", bos="<|begin_of_text|>", eos="<|eot|>"),
    Model("Hermes 2 Pro", "llama.cpp/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", default="HERMES_3",
          bos="<|begin_of_text|>", **_CHATML),
    Model("Hermes 3", "llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use", default="HERMES_3",
          bos="<|begin_of_text|>", **_CHATML),
    Model("Functionary 3.1", "llama.cpp/meetkai-functionary-medium-v3.1", "llama-3", **_LLAMA),
    Model("Functionary 3.2", "llama.cpp/meetkai-functionary-medium-v3.2", "llama-3", **_LLAMA),
    Model("Firefunction 2", "llama.cpp/fireworks-ai-llama-3-firefunction-v2", "llama-3", **_LLAMA),
    Model("Nemotron Nano 2", "llama.cpp/NVIDIA-Nemotron-Nano-v2", bos="<s>", eos="<SPECIAL_12>"),
    Model("Nemotron 3 Nano", "llama.cpp/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", **_CHATML),
    Model("Nemotron 3 Super", "trl/nemotron_3_super", **_CHATML),
    Model("Mistral Nemo", "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
    Model("Mistral Small 3.2", "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506", **_MISTRAL),
    Model("Devstral Small", "llama.cpp/unsloth-mistral-Devstral-Small-2507", **_MISTRAL),
    Model("Ministral 3 Reasoning", "llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512", **_MISTRAL),
    Model("DeepSeek V3", "", "deepseek-v3"),
    Model("DeepSeek R1 Distill Llama", "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-v3.1",
          **_DEEPSEEK),
    Model("DeepSeek R1 Distill Qwen", "trl/deepseek_r1_distill", "deepseek-v3.1", **_DEEPSEEK),
    Model("DeepSeek V3.1", "llama.cpp/deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1", **_DEEPSEEK),
    Model("DeepSeek V3.2", "llama.cpp/deepseek-ai-DeepSeek-V3.2", "deepseek-v4", **_DEEPSEEK),
    Model("DeepSeek V4", "llama.cpp/deepseek-ai-DeepSeek-V4", "deepseek-v4", **_DEEPSEEK),
    Model("Kimi K2 (first revision)", "llama.cpp/moonshotai-Kimi-K2", "kimi-k2"),
    Model("Kimi K2", "llama.cpp/Kimi-K2-Instruct", "kimi-k2"),
    Model("Kimi K2 Thinking", "llama.cpp/Kimi-K2-Thinking", also=("<|im_end|>",)),
    Model("GLM 4.5", "trl/glm4moe", **_GLM),
    Model("GLM 4.6", "llama.cpp/GLM-4.6", **_GLM),
    Model("GLM 4.7 Flash", "llama.cpp/GLM-4.7-Flash", **_GLM),
    Model("MiniMax M1", "llama.cpp/MiniMax-M1", bos="<begin_of_document>", eos="<end_of_sentence>",
          also=("<beginning_of_sentence>",)),
    Model("MiniMax M2", "llama.cpp/MiniMax-M2", "minimax-m2"),
    Model("gpt-oss", "llama.cpp/openai-gpt-oss-120b", "gpt-oss"),
    Model("Gemma 2", "llama.cpp/google-gemma-2-2b-it", bos="<bos>", eos="<eos>"),
    Model("Gemma 3", "trl/gemma3", bos="<bos>", eos="<eos>"),
    Model("Gemma 4", "trl/gemma4_v5", "gemma-4", bos="<bos>"),
    Model("Phi 3.5", "llama.cpp/microsoft-Phi-3.5-mini-instruct", eos="<|endoftext|>"),
    Model("Phi 4", "PHI_4", **_CHATML),
    Model("OLMo 2", "OLMO_2", bos="<|endoftext|>", eos="<|endoftext|>", also=_IM),
    Model("OLMo 3", "OLMO_3", **_CHATML),
    Model("Falcon H1", "FALCON_H1", bos="<|begin_of_text|>", **_CHATML),
    Model("LFM2", "llama.cpp/LFM2-8B-A1B", bos="<|startoftext|>", **_CHATML),
    Model("LFM2.5", "llama.cpp/LFM2.5-8B-A1B", bos="<|startoftext|>", **_CHATML),
    Model("MiMo VL", "llama.cpp/MiMo-VL", "qwen3"),
    Model("MiniCPM 3", "MINICPM_3", bos="<s>", **_CHATML),
    Model("MiniCPM 5", "llama.cpp/openbmb-MiniCPM5-1B", bos="<s>", **_CHATML),
    Model("InternLM 2.5", "INTERNLM_2", bos="<s>", **_CHATML),
    Model("Yi 1.5", "YI", **_CHATML),
    Model("Zephyr", "ZEPHYR", eos="</s>"),
    Model("Jamba 1.5", "JAMBA", bos="<|startoftext|>", eos="<|endoftext|>"),
    Model("Seed OSS", "llama.cpp/ByteDance-Seed-OSS", bos="<seed:bos>", eos="<seed:eos>",
          also=("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>")),
    Model("Granite 3.3", "llama.cpp/ibm-granite-granite-3.3-2B-Instruct", eos="<|end_of_text|>"),
    Model("Granite 4.0", "llama.cpp/ibm-granite-granite-4.0", eos="<|end_of_text|>"),
    Model("Command R7B", "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use", bos="<BOS_TOKEN>"),
    Model("Bielik 11B", "llama.cpp/Bielik-11B-v3.0-Instruct", bos="<s>", **_CHATML),
    Model("Apertus", "llama.cpp/Apertus-8B-Instruct", bos="<s>", eos="<|assistant_end|>"),
    Model("Solar Open", "llama.cpp/upstage-Solar-Open-100B"),
    Model("StepFun 3.5 Flash", "llama.cpp/StepFun3.5-Flash", **_CHATML),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What the table says of a family."""

    name: str
    renderer: str
    exact: str
    tools: str
    markers: str
    notes: str
    tokens: str

    def line(self) -> str:
        """The row as Markdown."""
        cells = (self.name, self.renderer, self.exact, self.tools, self.markers, self.notes, self.tokens)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


HEAD = Row(
    "family",
    "`auto` takes",
    "exact",
    "tools read back",
    "markers that come out",
    "what differs on purpose, or why it is refused",
    "tokenizer",
)


@cache
def row(model: Model) -> Row:
    """What `auto` makes of a family."""
    plain = tokenizer(model.real) if not model.template else model.tokenizer()
    tokens = "real" if model.real and model.real not in _STAND_INS else "its special tokens"
    try:
        renderer = get_renderer(plain)
    except ConfigError as error:
        return Row(model.name, "refused", "", "", _markers_of_refused(plain), _reason(str(error)), tokens)
    found = list(agreements(renderer, plain, 8))
    wanted = [one for one in found if one.verdict is TrialVerdict.ON_PURPOSE]
    notes = "; ".join(dict.fromkeys(reason for one in wanted for reason in one.detail.split("; ")[:-1]))
    exact = "no" if any(one.verdict is TrialVerdict.DIFFERS for one in found) else "but for" if wanted else "yes"
    return Row(model.name, f"`{renderer.name}`", exact, _tools(renderer), in_short(read_back(renderer)), notes, tokens)


def in_short(found: Iterable[MarkerCheck]) -> str:
    """Describe what comes out again, for a table's cell."""
    each = list(found)
    missing = {
        "lost": [one.part for one in each if one.lost],
        "no place": [one.part for one in each if not one.placed],
    }
    return "; ".join(f"{how}: {', '.join(parts)}" for how, parts in missing.items() if parts) or "all"


def _markers_of_refused(plain: HFTokenizer) -> str:
    """What comes out of a template that is refused, where it can be tried at all."""
    try:
        return in_short(read_back(unproven(plain)))
    except AgentRLError:
        return ""


def _tools(renderer: Renderer) -> str:
    """Whether calls that the renderer writes are read back, and by which grammar."""
    try:
        if misread(renderer, renderer.parser) is not None:
            return "no"
    except AgentRLError:
        refused = renderer.without_tools if isinstance(renderer, GenericRenderer) else NO_TOOLS
        unread = f"refused: {'no grammar reads them' if refused == UNREADABLE else _reason(refused)}"
        return "the template has none" if refused == NO_TOOLS else unread
    return f"yes ({renderer.grammar})" if isinstance(renderer, GenericRenderer) else "yes"


_STAND_INS = ("kimi-k2", "minimax-m2", "gemma-4", "llama-4")
"""Names under which `support.tokenizer` has a family's special tokens on another tokenizer."""


_REASONS = {
    "is not append-only": "the template is not append-only",
    "with no special token": "the template ends a turn with no special token",
}


def _reason(error: str) -> str:
    """A refusal without the tokens that it shows."""
    for known, told in _REASONS.items():
        if known in error:
            return told
    said = error.partition("renderer='auto' finds none for this model: ")[2].removeprefix("renderer='generic': ")
    said = re.sub(r"none of \d+ generated conversations could be rendered: ", "", said.partition(";")[0])
    return said.partition(", and of the families")[0]


def table(models: Sequence[Model] = MODELS) -> list[str]:
    """The table's lines."""
    return [HEAD.line(), "|---|---|---|---|---|---|---|", *(row(model).line() for model in models)]


def main() -> None:
    """Write the table into docs/renderers.md."""
    logging.getLogger("agentrl").setLevel(logging.ERROR)
    text = DOCS.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    DOCS.write_text("\n".join([before, *table(), after]))


if __name__ == "__main__":
    main()
