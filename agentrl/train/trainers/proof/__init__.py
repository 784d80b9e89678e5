"""Proofs of architectures before a run, that our trainer or engine computes what transformers computes.

A forest is exact for attention that goes through transformers' attention interface with queries, keys and values alone,
and with positions counted along the path. Layers with a state along the row (linear attention, state-space models,
convolutions) follow paths where they keep it in transformers' cache (`agentrl.models.mixers`). For others of that kind,
for biases that depend on the index in the row, for attention outside the interface, and for rotary embeddings that
depend on the longest position in a batch, a forest is silently wrong. No table of model names can list them all, so the
architecture itself is tested, on a small random model (`comparison`).

It takes seconds, and the result is cached by a digest of what it depends on. Given up: the folder's own weights are not
compared here (`loaded` does that), and an architecture that can't be tested is refused like one that fails.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers

from agentrl.common import custom_code
from agentrl.errors import ConfigError, InvalidInput, UnknownName
from agentrl.models.loading import loadable_config
from agentrl.models.registry import cache_folder
from agentrl.models.rope import too_long, with_short_row_angles
from agentrl.models.vision import sees
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.proof.comparison import compare
from agentrl.train.trainers.proof.subjects import ALWAYS, PACKAGE, SUBJECTS, Proof, settings_on_ranks

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.trainer import MegatronTrainer

R = TypeVar("R", bound=Any)
TRIES, TRIES_IN_LOW_PRECISION = 2, 3
"""Random models until one passes: where experts have equal scores, rounding decides, but rarely twice."""


def require(
    path: Path,
    what: str,
    device: str = "cpu",
    subject: str = "torch",
    family: str | None = None,
    dtype: str = "float32",
    ranks: MegatronTrainer | None = None,
    context: int | None = None,
) -> None:
    """Refuse a model that a trainer would train wrong, or that the local engine would compute wrong.

    Args:
        path: a Hugging Face folder; its config.json is enough.
        what: the model's name as the user gave it.
        device: where the run will compute.
        subject: torch, megatron or local.
        family: the model's family on Megatron, where its configuration does not say it.
        dtype: the precision that the run computes in; below float32 the test is run in float32 too.
        ranks: Megatron's, started, to test it in their layout; None starts one rank.
        context: tokens of the longest path; None is the model's own limit.
    """
    for precision in dict.fromkeys(("float32", dtype)):
        proof = prove(path, device, subject=subject, family=family, dtype=precision, ranks=ranks, context=context)
        if not proof.passed:
            kind, tested = _config(path, subject, family).model_type, SUBJECTS[subject]
            anyway = "" if proof.fault else f"; {tested.anyway}"
            where = f"in the layout {ranks.layout}, " if ranks is not None and ranks.layout.ranks > 1 else ""
            result = f"{where}{proof}{tested.instead}{anyway}"
            raise ConfigError(f"model={what!r} ({kind}) can't be {tested.refusal}: {result}")


def require_family(path: Path, what: str, family: str | None = None) -> None:
    """Refuse a model that no Megatron family supports, before anything is started."""
    try:
        _config(path, "megatron", family)
    except (UnknownName, InvalidInput) as error:
        tested = SUBJECTS["megatron"]
        raise ConfigError(f"model={what!r} can't be {tested.refusal}: {error}{tested.instead}") from None


def prove_on_ranks(path: Path, what: str) -> Callable[[MegatronTrainer], None]:
    """A function that tests the architecture on a trainer's ranks before they build the model."""

    def first(trainer: MegatronTrainer) -> None:
        config = trainer.config
        require(path, what, trainer.device, "megatron", config.family, config.dtype, ranks=trainer)

    return first


def prove(
    path: Path,
    device: str = "cpu",
    seed: int = 0,
    subject: str = "torch",
    family: str | None = None,
    dtype: str = "float32",
    ranks: MegatronTrainer | None = None,
    context: int | None = None,
) -> Proof:
    """Test a folder's architecture in one precision, for paths of up to `context` tokens; results are cached."""
    try:
        config = _config(path, subject, family)
    except (UnknownName, InvalidInput) as error:  # no Megatron family
        return Proof(fault=str(error))
    if subject != "megatron":
        if fault := too_long(config, context):
            return Proof(fault=fault)
        config = with_short_row_angles(config)
    settings = settings_on_ranks(ranks, dtype)
    key = _digest(config, device, subject, family or "", dtype, _key(settings))

    def compare_until_passed() -> Proof:
        for number in range(TRIES if dtype == "float32" else TRIES_IN_LOW_PRECISION):
            proof = compare(config, device, seed + number, subject, family, dtype, ranks)
            if proof.passed or proof.fault:
                break
        return proof

    return compute_once(key, Proof, compare_until_passed)


def compute_once(
    key: str, kind: type[R], compute: Callable[[], R], keep: Callable[[R], bool] = lambda found: True
) -> R:
    """Return a result from the user's cache, or compute it, and keep it there under its key where `keep` says so.

    A result is a dataclass of JSON values with fields `seconds` and `cached`.
    """
    file = cache_folder().parent / "proofs" / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):
        found: R = replace(kind(**json.loads(file.read_text())), cached=True)
        return found
    began = time.monotonic()
    found = replace(compute(), seconds=time.monotonic() - began)
    if keep(found):
        with suppress(OSError):  # a cache is no reason to fail
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(asdict(found)))
    return found


def _config(path: Path, subject: str, family: str | None) -> Any:
    if subject != "megatron":
        return loadable_config(path, seeing=True)
    from agentrl.train.trainers.megatron.models import family as families

    config = families.read_config(path, family)
    return loadable_config(path, seeing=True) if sees(path) else config


def _key(settings: MegatronConfig | None) -> str:
    """The layout, and the settings that change what is computed."""
    others = {"timeout", "threads", "token_budget", "proof"}
    return "" if settings is None else settings.model_dump_json(exclude=others)


def _digest(config: Any, device: str, subject: str, *settings: str) -> str:
    fields = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    digest = hashlib.blake2b(json.dumps(fields, sort_keys=True, default=str).encode(), digest_size=16)
    source = getattr(config, "name_or_path", "")
    code = custom_code.digest(Path(source)) if source else ""
    for word in (transformers.__version__, torch.__version__, device, subject, code, *settings):
        digest.update(word.encode())
    for name in (*ALWAYS, *SUBJECTS[subject].sources):
        digest.update((PACKAGE / name).read_bytes())
    return digest.hexdigest()
