"""slime's sample and arguments for functions that were written for it: `rewards.NAME=slime`, `agent=slime:…`.

slime is no package of an index, so its functions are run without it: what they import of it most often is stood in for
(`PARTS`) where it is not installed. A sample has the fields of slime's own.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from agentrl.common.foreign_errors import words
from agentrl.common.imports import load
from agentrl.envs.adapters import library
from agentrl.errors import ConfigError
from agentrl.types import Task

ASKED: ContextVar[Any] = ContextVar("asked")
"""Within a session: `async def ask(url, payload)`, which its requests are given to."""
SETTINGS: dict[str, Any] = {
    **{"partial_rollout": False, "apply_chat_template": False, "reward_key": None, "rollout_max_context_len": None},
    **{"sglang_speculative_algorithm": None, "use_slime_router": False, "use_rollout_routing_replay": False},
    **{"rollout_max_response_len": 1024, "custom_rm_path": None, "rm_type": None, "group_rm": False},
    **{"sglang_router_ip": "127.0.0.1", "sglang_router_port": 0, "ci_test": False},
}
"""Arguments of slime's that functions read, and their values here."""


class SampleStatus(Enum):
    """A sample's end, as in slime."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class SlimeSample:
    """A prompt and what was generated for it, with the fields of slime's sample."""

    Status = SampleStatus
    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    custom_rm_path: str | None = None

    def get_reward_value(self, args: Any) -> Any:
        """Return the reward, or that of `args.reward_key`."""
        return self.reward[args.reward_key] if args.reward_key else self.reward

    @property
    def effective_response_length(self) -> int:
        """The number of response tokens that count."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def update_from_meta_info(self, args: Any, meta_info: Mapping[str, Any]) -> None:
        """Take the end of a reply as the sample's."""
        ends = {"length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED, "stop": SampleStatus.COMPLETED}
        self.status = ends[meta_info["finish_reason"]["type"]]


class UnknownArgument(ConfigError, AttributeError):
    """A function reads an argument of slime's that it was not given; `getattr` with a default takes the default."""


class SlimeArguments(SimpleNamespace):
    """Slime's arguments, by attribute."""

    def __getattr__(self, name: str) -> Any:
        raise UnknownArgument(
            f"the function reads args.{name}, which has no value here: add {name}=VALUE behind the agent's path, or "
            f"rewards.NAME.kwargs.{name}=VALUE"
        )


def arguments_of(given: Mapping[str, Any], **more: Any) -> SlimeArguments:
    """Return slime's arguments, of which some are given."""
    return SlimeArguments(**{**SETTINGS, **more, **given})


def sample_of(task: Task, response: str = "", tokens: Sequence[int] = (), length: int = 0, *, cut: bool = False) -> Any:
    """Return a task's row as a sample, which has copies of its values; with a response it has ended.

    Args:
        task: the task.
        response: what was said behind the prompt.
        tokens: those of prompt and response.
        length: how many of them are the response's.
        cut: whether a limit ended it.
    """
    row = copy.deepcopy(task.data)
    sample = sample_class()(
        prompt=row.get("prompt", ""),
        label=row.get("label"),
        metadata=dict(row.get("metadata") or {}),
        response=response,
        tokens=list(tokens),
        response_length=length,
    )
    if response or length:
        ends = type(sample).Status
        sample.status = ends.TRUNCATED if cut else ends.COMPLETED
    return sample


def sample_class() -> Any:
    """Return slime's own class of samples where it is installed, else ours."""
    return getattr(sys.modules.get("slime.utils.types"), "Sample", SlimeSample)


async def post(url: str, payload: Any, *_: Any, **__: Any) -> Any:
    """Answer a request to SGLang's router: the session that it is made in does.

    Raises:
        ConfigError: it is made in no session of an agent, or is for something else.
    """
    ask = ASKED.get(None)
    if ask is None:
        raise ConfigError(f"a function of slime asked {url}: only within agent=slime:… does `post` ask the policy")
    return await ask(url, payload)


class GenerateState:
    """State that slime's rollouts share: here the tokenizer of `args.hf_checkpoint`."""

    def __init__(self, args: Any) -> None:
        self.args, self.processor, self.aborted = args, None, False

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; ConfigError where no folder was given."""
        return tokenizer_of(getattr(self.args, "hf_checkpoint", None))


@cache
def tokenizer_of(folder: str | None) -> Any:
    """Return the tokenizer of a folder in Hugging Face's format; nothing is fetched.

    Raises:
        ConfigError: there is no folder, or no tokenizer in it.
        MissingExtra: transformers is not installed.
    """
    if not folder:
        raise ConfigError("the function asks for a tokenizer: add tokenizer=FOLDER, the model's, behind its name")
    path = Path(str(folder)).expanduser()
    if not path.is_dir():
        raise ConfigError(f"tokenizer={folder!r}: there is no such folder")
    transformers = library("transformers", "train")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(path))
    except Exception as error:
        raise ConfigError(f"tokenizer={folder!r}: the folder holds none that can be read: {words(error)}") from error


PARTS: dict[str, dict[str, Any]] = {
    "slime": {},
    "slime.utils": {},
    "slime.utils.types": {"Sample": SlimeSample},
    "slime.utils.http_utils": {"post": post},
    "slime.rollout": {},
    "slime.rollout.sglang_rollout": {"GenerateState": GenerateState},
}
"""The names that a function may import of slime, by module."""


def load_function(path: str, where: str) -> Any:
    """Load a function that was written for slime.

    What it imports of `PARTS` is ours where slime is not installed; `post` and `GenerateState` are ours in any case,
    since there is no router of SGLang behind them.

    Raises:
        AgentRLError: as `agentrl.common.imports.load`.
    """
    for name, members in PARTS.items():
        module = _module(name)
        if "Sample" not in members or not hasattr(module, "Sample"):
            vars(module).update(members)
    return load(path, where)


def _module(name: str) -> ModuleType:
    """An installed module of slime's, or an empty one in its place."""
    try:
        return importlib.import_module(name)
    except Exception:  # it is not installed, or not what it imports, such as Megatron
        made = sys.modules[name] = ModuleType(name)
        made.__path__ = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, made)
        return made
