"""The files of a tokenizer in a Hugging Face folder: several hold what belongs to one tokenizer.

`tokenizer.json` has the vocabulary and rules. Added tokens may be in the tokenizer's configuration alone, chat
templates in five places, and the tokens that end generation in `generation_config.json`. Formats without
`tokenizer.json` (SentencePiece, tiktoken, tekken, a vocabulary with merges) lack rules that only a library knows for
each model, so they are not read here: what is raised names the command that converts them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import InvalidInput

_NAMED = ("bos_token", "eos_token", "sep_token", "cls_token", "mask_token")
"""Settings of special tokens that may be missing among the added ones. Not `pad_token` and `unk_token`: models name
ordinary text there."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of a folder about its tokenizer.

    Attributes:
        source: the text of its `tokenizer.json`, with all added tokens.
        config: the contents of `tokenizer_config.json`, with all chat templates.
        end_tokens: ids of the tokens that end generation.
    """

    source: str
    config: dict[str, Any] = field(default_factory=dict)
    end_tokens: tuple[int, ...] = ()


def read(path: Path) -> TokenizerFiles:
    """Read a folder, or a `tokenizer.json` with the files beside it.

    Raises:
        InvalidInput: there is no `tokenizer.json`, or a file can't be read; the message names it.
    """
    folder, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    if not file.is_file():
        raise InvalidInput(f"tokenizer={str(path)!r}: {missing(folder)}")
    config = _json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # as transformers reads them
        named = _json(folder / "special_tokens_map.json")
        config |= {name: token for name, token in named.items() if name not in _LISTS}
    if templates := _templates(folder, config):
        config["chat_template"] = templates
    return TokenizerFiles(_with_added_tokens(file, folder, config), config, _end_tokens(folder))


def missing(folder: Path) -> str:
    """Return why a folder without `tokenizer.json` has no tokenizer that is read here, and what makes one."""
    kind, converter, needs = _other_format(folder)
    if not kind:
        return "no tokenizer.json there; a Hugging Face folder has one"
    auto_map = _json(folder / "tokenizer_config.json").get("auto_map")
    if auto_map or not converter:
        code = " (auto_map in tokenizer_config.json)" if auto_map else ""
        return (
            f"no tokenizer.json there, but {kind}, whose rules only its model's own code has{code}, which is not run: "
            "take a tokenizer.json that was made of it"
        )
    code = f"import sys; from transformers import {converter} as T; T.from_pretrained(sys.argv[1]).save_pretrained"
    return (
        f"no tokenizer.json there, but {kind}; convert it once with "
        f"python -c {shlex.quote(code + '(sys.argv[1])')} {shlex.quote(str(folder))}{needs}"
    )


def _other_format(folder: Path) -> tuple[str, str, str]:
    """The format of a tokenizer without `tokenizer.json`, the class that converts it, and the packages that it needs.

    `TokenizersBackend` follows the files. `AutoTokenizer` takes a class by the model's type, whose rules may be others:
    Llama's splits runs of blanks otherwise than SentencePiece, and Mistral's writes no `tokenizer.json`. Of files with
    other names than `tokenizer.model` (Qwen's and Kimi's tiktoken, XGLM's SentencePiece) it makes another tokenizer, or
    an empty one, without a word.
    """
    own = "TokenizersBackend"
    if (folder / "tekken.json").is_file():
        return "a tekken vocabulary (tekken.json)", own, " (needs the package mistral-common)"
    for file in sorted((*folder.glob("*.tiktoken"), *folder.glob("*.model"))):
        what, needs = f"a SentencePiece model ({file.name})", "sentencepiece and protobuf"
        if file.suffix == ".tiktoken" or _is_tiktoken(file):
            what, needs = f"a tiktoken vocabulary ({file.name})", "tiktoken and blobfile"
        return what, own if file.name == "tokenizer.model" else "", f" (needs the packages {needs})"
    if (folder / "vocab.json").is_file():
        return "a vocabulary (vocab.json)", "AutoTokenizer", ""
    return "", "", ""


def _is_tiktoken(file: Path) -> bool:
    """True if a file has tiktoken's lines, base64 and a rank; SentencePiece's are binary."""
    with file.open("rb") as opened:
        words = opened.readline(1024).split()
    return len(words) == 2 and words[1].isdigit()


def _json(file: Path) -> dict[str, Any]:
    """A file's JSON object; {} where there is no file."""
    if not file.is_file():
        return {}
    try:
        found = orjson.loads(file.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"tokenizer: {str(file)!r} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"tokenizer: {str(file)!r} holds a {type(found).__name__}, not a JSON object")
    return found


# ------------------------------------------------------------------------------------------ chat templates


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; files win over the configuration, and a processor's JSON is for where neither has one."""
    found: dict[str, str] = {}
    for name in ("processor_config.json", "chat_template.json", "tokenizer_config.json"):
        settings = config if name == "tokenizer_config.json" else _json(folder / name)
        found |= named_templates(settings.get("chat_template"), f"{str(folder / name)!r}")
    found |= {file.stem: _text(file) for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (file := folder / "chat_template.jinja").is_file():
        found["default"] = _text(file)
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except ValueError as error:
        raise InvalidInput(f"tokenizer: {str(file)!r} is no text in UTF-8: {error}") from None


def named_templates(templates: Any, where: str) -> dict[str, str]:
    """Chat templates by their names, from any format that they are stored in; a single one is the default.

    Raises:
        InvalidInput: they are stored otherwise; the message begins with `where`.
    """
    found = {} if templates is None else templates
    if isinstance(templates, str):
        found = {"default": templates}
    elif isinstance(templates, list) and all(isinstance(entry, dict) for entry in templates):
        found = {entry.get("name"): entry.get("template") for entry in templates}
    if isinstance(found, dict) and all(isinstance(part, str) for entry in found.items() for part in entry):
        return dict(found)
    shown = repr(templates)[:100]
    raise InvalidInput(
        f"{where}: chat_template={shown} is neither a text, nor a list of objects with the texts `name` and `template`"
    )


# --------------------------------------------------------------------------------------------- end tokens


def _end_tokens(folder: Path) -> tuple[int, ...]:
    """The tokens at which the model's authors end generation: `generation_config.json`'s, else `config.json`'s."""
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if found := tuple(index for index in ids if isinstance(index, int) and not isinstance(index, bool)):
            return found
    return ()


# -------------------------------------------------------------------------------------------- added tokens


def _with_added_tokens(file: Path, folder: Path, config: Mapping[str, Any]) -> str:
    """The text of a `tokenizer.json` in which the added tokens are that only other files have.

    transformers adds them when it loads the folder, so models were trained with them.
    """
    source = _text(file)
    try:
        spec = orjson.loads(source)
        entries = list(spec.get("added_tokens") or [])
        known = {entry["content"] for entry in entries}
        vocabulary = pieces(spec["model"])
        more = [entry for entry in _list_declared(folder, config) if entry["content"] not in known]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"tokenizer={str(file)!r} can't be read: {error!r}") from error
    if not more:
        return source
    size = max([len(vocabulary), *(entry["id"] + 1 for entry in entries)])
    for entry in more:
        place = vocabulary.get(entry["content"], size)
        if entry["id"] not in (None, place):
            raise InvalidInput(
                f"tokenizer={str(folder)!r}: the token {entry['content']!r} has the id {entry['id']} in the "
                f"tokenizer's configuration, and {place} behind the tokens of tokenizer.json"
            )
        size = max(size, place + 1)
        entries.append({**entry, "id": place})
    return orjson.dumps({**spec, "added_tokens": entries}).decode()


def pieces(model: Mapping[str, Any]) -> Mapping[str, int]:
    """The pieces and ids in the "model" of a `tokenizer.json`; a Unigram's ids are its places."""
    vocab = model["vocab"]
    return vocab if isinstance(vocab, dict) else {piece: place for place, (piece, _) in enumerate(vocab)}


def _list_declared(folder: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The added tokens that other files than `tokenizer.json` name, in the order in which transformers adds them."""
    found: dict[str, dict[str, Any]] = {}
    named = dict(config)
    if decoder := config.get("added_tokens_decoder"):
        for index, token in sorted(decoder.items(), key=lambda item: int(item[0])):
            found[token["content"]] = _entry(token, int(index))
    else:
        for token, index in sorted(_json(folder / "added_tokens.json").items(), key=lambda item: item[1]):
            found[token] = _entry(token, index)
        named = {**_json(folder / "special_tokens_map.json"), **named}
    for token in _special(named):
        entry = _entry(token, None)
        found.setdefault(entry["content"], entry)
    return list(found.values())


def _special(named: Mapping[str, Any]) -> Iterator[Any]:
    """Special tokens by their settings, as text or as mappings."""
    yield from (named[key] for key in _NAMED if named.get(key))
    for key in _LISTS:
        tokens = named.get(key) or ()
        yield from tokens.values() if isinstance(tokens, dict) else tokens


def _entry(token: Any, index: int | None) -> dict[str, Any]:
    given = token if isinstance(token, dict) else {"content": token}
    flags = {name: bool(given.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return {"id": index, "content": given["content"], **flags, "special": True}
