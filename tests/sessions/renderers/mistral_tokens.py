"""Conversations as Mistral's own encoder writes them; run by an interpreter that has `mistral-common`.

Reads {"special": [text by id], "cases": [{"version", "messages", "tools"}]} from its input and writes a list of token
lists. The vocabulary is Nemo's, which the package carries; versions differ in special tokens and layout.
"""

import json
import sys
from pathlib import Path

import mistral_common
from mistral_common.protocol.instruct.normalize import get_normalizer
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers import instruct
from mistral_common.tokens.tokenizers.base import TokenizerVersion
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer


def main() -> None:
    given = json.load(sys.stdin)
    data = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240718.json").read_text())
    special = [{"rank": n, "token_str": text, "is_control": True} for n, text in enumerate(given["special"])]
    made = {}
    for name in {case["version"] for case in given["cases"]}:
        version = TokenizerVersion(name)
        config = data["config"]
        plain = Tekkenizer(
            data["vocab"], special, config["pattern"], config["default_vocab_size"], len(special), version
        )
        encoder = getattr(instruct, f"InstructTokenizer{name.upper()}")(plain)
        made[name] = MistralTokenizer(encoder, get_validator(version, ValidationMode.serving), get_normalizer(version))
    written = []
    for case in given["cases"]:
        request = ChatCompletionRequest(model="m", messages=case["messages"], tools=case["tools"])
        written.append(made[case["version"]].encode_chat_completion(request).tokens)
    json.dump(written, sys.stdout)


main()
