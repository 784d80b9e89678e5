"""Names for environments: built in, registered, brought by an installed package, or a file's class.

An environment's settings are the parameters of its constructor. They are checked against the signature before it is
called: a typing mistake on the command line is answered with what is allowed.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeGuard, get_type_hints

from pydantic import ValidationError

from agentrl.config.secrets import declare
from agentrl.config.yaml_settings import SWITCHES
from agentrl.errors import AgentRLError, ConfigError, EnvError, InvalidInput, UnknownName
from agentrl.registry import Registry
from agentrl.tools.schema import Parameter, Signature

if TYPE_CHECKING:
    from agentrl.envs.base import Env

EnvFactory = Callable[..., "Env"]
"""An environment's class, or another callable that returns one."""


def _is_env_class(found: object) -> TypeGuard[type[Env]]:
    from agentrl.envs.base import Env  # not to answer a wrong name

    return isinstance(found, type) and issubclass(found, Env)


ENVS: Registry[EnvFactory] = Registry(
    "environment",
    "env",
    "agentrl.envs",
    {
        "allocation": "agentrl.envs.builtin.teams.allocation:Allocation",
        "calculator": "agentrl.envs.builtin.calculator:Calculator",
        "castle": "agentrl.envs.builtin.castle:Castle",
        "code": "agentrl.envs.builtin.code.env:Code",
        "data_analysis": "agentrl.envs.builtin.data_analysis.env:DataAnalysis",
        "debate": "agentrl.envs.builtin.teams.debate:Debate",
        "document_search": "agentrl.envs.builtin.document_search.env:DocumentSearch",
        "function_calls": "agentrl.envs.builtin.function_calls:FunctionCalls",
        "grid_camera": "agentrl.envs.builtin.seen.grid_camera:GridCamera",
        "grid_transport": "agentrl.envs.builtin.teams.grid_transport:GridTransport",
        "gsm8k": "agentrl.envs.builtin.gsm8k:GSM8K",
        "gymnasium": "agentrl.envs.adapters.gymnasium:Gymnasium",
        "hide_and_seek": "agentrl.envs.builtin.teams.hide_and_seek:HideAndSeek",
        "inspect": "agentrl.envs.adapters.inspect:Inspect",
        "instructions": "agentrl.envs.builtin.instructions.env:Instructions",
        "joint_length": "agentrl.envs.builtin.teams.joint_length:JointLength",
        "kuhn_poker": "agentrl.envs.builtin.games.kuhn_poker:KuhnPoker",
        "liars_dice": "agentrl.envs.builtin.games.liars_dice:LiarsDice",
        "harbor": "agentrl.envs.adapters.harbor:Harbor",
        "math_tools": "agentrl.envs.builtin.math_tools:MathTools",
        "mixture": "agentrl.envs.data.mixture:Mixture",
        "nemo_gym": "agentrl.envs.adapters.nemo_gym:NemoGym",
        "negotiation": "agentrl.envs.builtin.games.negotiation:Negotiation",
        "openenv": "agentrl.envs.adapters.openenv:OpenEnv",
        "pettingzoo": "agentrl.envs.adapters.pettingzoo:PettingZoo",
        "planner_worker": "agentrl.envs.builtin.teams.planner_worker:PlannerWorker",
        "prompts": "agentrl.envs.builtin.prompts:Prompts",
        "questions": "agentrl.envs.builtin.questions.env:Questions",
        "retail": "agentrl.envs.builtin.retail.env:Retail",
        "search_r1": "agentrl.envs.builtin.search_r1.env:SearchR1",
        "textarena": "agentrl.envs.adapters.textarena:TextArena",
        "shapes": "agentrl.envs.builtin.seen.shapes:DrawnShapes",
        "speaker_listener": "agentrl.envs.builtin.teams.speaker_listener:SpeakerListener",
        "swe": "agentrl.envs.builtin.swe.env:Swe",
        "terminal": "agentrl.envs.builtin.terminal.env:Terminal",
        "text_adventure": "agentrl.envs.builtin.text_adventure:TextAdventure",
        "trl": "agentrl.envs.adapters.trl:Trl",
        "verifiers": "agentrl.envs.adapters.verifiers:Verifiers",
        "verl": "agentrl.envs.adapters.verl:Verl",
        "web_forms": "agentrl.envs.builtin.web.forms.env:WebForms",
        "web_shop": "agentrl.envs.builtin.web.shop.env:WebShop",
    },
    accept=lambda found: found if callable(found) else None,
    default=_is_env_class,
    hint=lambda path, found: f"name its class, {type(found).__name__}" if _is_env_class(type(found)) else "",
    error=EnvError,
)
"""A package names its environments as entry points of the group `agentrl.envs`: `shop = "my_package.shop:Shop"`."""

register = ENVS.register
SOURCE = "source"
"""The constructor's parameter that NAME:SOURCE gives."""
ADAPTERS = {
    **{name: name for name in ("gymnasium", "pettingzoo", "textarena", "verifiers")},
    **{"gym": "gymnasium", "inspect_ai": "inspect"},
}
"""The adapters of other packages' environments."""
_VERSIONED = re.compile(r"(.+)-v(\d+)")
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def find(name: str | EnvFactory) -> EnvFactory:
    """The class (or callable) of a name, NAME:SOURCE, or an import path; `Registry.find` describes the errors.

    A name without its version is the newest one: `shop` is `shop-v2` where there are `shop-v1` and `shop-v2`. An older
    one is found with a warning. `NAME-vN` is also an environment without versions in its name whose `version` is N.
    """
    return _find(_split(name)[0]) if isinstance(name, str) else name


def versions(name: str) -> dict[int, str]:
    """The known names of an environment's versions, such as {1: "shop-v1", 2: "shop-v2"} of `shop`, oldest first."""
    matches = (_VERSIONED.fullmatch(known) for known in ENVS.known())
    found = {int(match[2]): match[0] for match in matches if match and match[1] == name}
    return dict(sorted(found.items()))


def newest(name: str) -> str:
    """The name of an environment's newest version; the name itself where it has none."""
    match = _VERSIONED.fullmatch(name)
    return list(versions(match[1] if match else name).values() or [name])[-1]


def _find(name: str) -> EnvFactory:
    known = ENVS.known()
    match = None if ":" in name or "/" in name else _VERSIONED.fullmatch(name)
    if name in known:
        if newest(name) != name and match and name not in _warned:
            _warned.add(name)
            _log.warning("env=%s is outdated: the newest version is %s", name, newest(name))
        return ENVS.find(name)
    if match is None:
        return ENVS.find(newest(name))
    if match[1] not in known:
        if there := versions(match[1]):
            raise UnknownName(f"there is no environment {name!r} (versions: {', '.join(there.values())})")
        return ENVS.find(name)
    target = ENVS.find(match[1])
    version = getattr(target, "version", None)
    if version != match[2]:
        raise UnknownName(f"there is no environment {name!r}: {match[1]!r} has the version {version}")
    return target


def _split(name: str) -> tuple[str, dict[str, str]]:
    """A name, and what it gives to the constructor: `gymnasium:CartPole-v1` is `gymnasium` with a source."""
    first, colon, source = name.partition(":")
    if colon and newest(first) in ENVS.known() and SOURCE in _signature(_find(first), first).names:
        return first, {SOURCE: source}
    return name, {}


def make(name: str | EnvFactory, **kwargs: Any) -> Env:
    """A new environment.

    Args:
        name: a known name, with a source where it takes one (`gymnasium:CartPole-v1`), path/to/file.py:Class, or a
            class itself.
        kwargs: its constructor's options.

    Raises:
        UnknownName: nothing of that name.
        ConfigError: an option is unknown, missing, or of the wrong type.
        EnvError: its code failed, or gave something that is no Env.
    """
    return factory(name, **kwargs)()


def _types(target: EnvFactory) -> dict[str, Any]:
    """The types of a constructor's or a function's arguments, as far as they can be told."""
    try:
        return get_type_hints(target.__init__ if isinstance(target, type) else target, include_extras=True)  # type: ignore[misc]
    except Exception:  # a name that is defined nowhere, say
        return {}


def refuse_unknown(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that no parameter of an environment's constructor takes; others are for `factory` to check.

    Raises:
        ConfigError: says all that is wrong with the settings.
    """
    first = _split(name)[0]
    signature = _signature(_find(first), name, described=False)
    if not (signature.open or settings.keys() <= {*signature.names}):
        factory(name, **settings)


def factory(name: str | EnvFactory, **kwargs: Any) -> Callable[[], Env]:
    """Like `make`, for many instances: options are checked once, and each call constructs a new one."""
    target = find(name)
    label = name if isinstance(name, str) else getattr(name, "__name__", "environment")
    given = _split(name)[1] if isinstance(name, str) else {}
    if both := given.keys() & kwargs.keys():
        raise ConfigError(f"environment {label!r}: {both.pop()} is given twice, in the name and as a setting")
    signature = _signature(target, label)
    try:
        checked = signature.check(_read_switches(signature, {**given, **kwargs}))
    except ValidationError as error:
        raise ConfigError(f"environment {label!r}: {signature.describe(error, 'env.')}") from None

    declare(label, _types(target), given | kwargs)
    from agentrl.envs.base import Env

    def build() -> Any:  # its hints are read, as those of any environment's factory, and this module has no Env
        try:
            env = target(**checked)
        except AgentRLError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"environment {label!r}: {error}") from error
        except (Exception, SystemExit) as error:
            raise EnvError(f"environment {label!r} can't be built: {type(error).__name__}: {error}") from error
        if not isinstance(env, Env):
            raise EnvError(
                f"environment {label!r} gave {type(env).__name__}, which is no agentrl.Env{_hint_adapter(env, label)}"
            )
        _check_attributes(env)
        return env

    return build


def _hint_adapter(made: object, label: str) -> str:
    """Name the adapter that is for another library's environment; '' where none is known."""
    if inspect.iscoroutine(made):
        made.close()
        return ": make it in a plain function, not in an async one"
    packages = [cls.__module__.partition(".")[0] for cls in type(made).__mro__]
    if adapter := next((ADAPTERS[package] for package in packages if package in ADAPTERS), None):
        return f": env={adapter}:… takes it (docs/adapters.md)"
    looks_like_trl = callable(getattr(made, "reset", None)) and callable(getattr(made, "get_reward", None))
    return f": env=trl:{label} takes TRL's environments" if looks_like_trl else ""


def _check_attributes(env: Env) -> None:
    """Refuse an instance whose attributes would be read as others than are meant; EnvError names one."""
    from agentrl.tools.registry import ToolRegistry

    cls = type(env.unwrapped)
    for name, example in (("splits", ("train", "eval")), ("agents", ("buyer", "seller")), ("stop_strings", ("</a>",))):
        given: Any = getattr(env, name)
        if isinstance(given, str) or not (given or name == "stop_strings"):
            raise EnvError(f"{cls.__name__}.{name} is {given!r}; it must be a tuple of names, as in {example}")
    turns: Any = getattr(env, "max_turns", None)  # a property may need an episode
    if turns is not None and (isinstance(turns, bool) or not isinstance(turns, Integral) or turns < 1):
        raise EnvError(f"{cls.__name__}.max_turns is {turns!r}; it must be a whole number from 1 on, or None")
    tools = vars(env).get("tools", inspect.getattr_static(type(env), "tools"))
    if not isinstance(tools, ToolRegistry | cached_property | property):
        raise EnvError(f"{cls.__name__}.tools is {tools!r:.80}, but holds its tools: self.tools.add(function) adds one")


def _read_switches(signature: Signature, given: dict[str, Any]) -> dict[str, Any]:
    """The options, with yes, no, on and off as true and false where a default alone says that an option is that."""
    switches = {each.name for each in signature.parameters if each.annotation is Any and isinstance(each.default, bool)}
    return {
        name: SWITCHES.get(value.lower(), value) if name in switches and isinstance(value, str) else value
        for name, value in given.items()
    }


@dataclass(frozen=True)
class EnvInfo:
    """One line of `agentrl envs`.

    Attributes:
        error: why a known name can't be used; "" otherwise.
        max_turns: of an instance with its default options, as are `tools` and `rewards`; None where it has no limit, or
            can't be made without options.
        rewards: the names of those that count, none where steps are rewarded; None where there is no instance.
        needs: what it needs besides agentrl, in words.
        ready: whether it is one of ours that can be played as it is: it needs nothing and no options.
        newer: the name of its newest version, where this is an older one; "" otherwise.
    """

    name: str
    description: str = ""
    splits: tuple[str, ...] = ()
    expert: bool = False
    options: tuple[Parameter, ...] = field(default=())
    error: str = ""
    max_turns: int | None = None
    tools: tuple[str, ...] = ()
    rewards: tuple[str, ...] | None = None
    needs: str = ""
    ready: bool = False
    newer: str = ""


def list_envs() -> list[EnvInfo]:
    """Every known environment, by name; one that can't be imported says so instead of failing the list."""
    return [describe(name) for name in sorted(ENVS.known())]


def describe(name: str | EnvFactory) -> EnvInfo:
    """Describe an environment to a user who considers it."""
    from agentrl.envs.base import has_expert, reward_methods

    label = name if isinstance(name, str) else getattr(name, "__name__", "environment")
    try:
        target = ENVS.find(name) if name in ENVS.known() else find(name)
        lines = (inspect.getdoc(target) or "").strip().splitlines()
        options = _signature(target, label).parameters
    except AgentRLError as error:
        return EnvInfo(label, error=str(error))
    newer = newest(label) if newest(label) != label and _VERSIONED.fullmatch(label) else ""
    info = EnvInfo(label, lines[0] if lines else "", options=options, newer=newer)
    if _is_env_class(target):
        info = replace(info, splits=target.splits, expert=has_expert(target), needs=target.needs)
    try:
        env = make(target)
    except AgentRLError:  # it can't be made without options
        return info
    rewards = tuple(mark.name for mark, _ in reward_methods(env) if mark.weight)
    ready = type(env).__module__.startswith("agentrl.") and not info.needs
    return replace(info, max_turns=env.max_turns, tools=tuple(env.tools.names), rewards=rewards, ready=ready)


def _signature(target: EnvFactory, label: str, *, described: bool = True) -> Signature:
    constructor = inspect.getattr_static(target, "__init__") if isinstance(target, type) else target
    if constructor is object.__init__:
        return Signature(())
    descriptions = _describe_parameters(target, constructor) if described else {}
    try:
        instance = list(inspect.signature(constructor).parameters)[:1] if isinstance(target, type) else ()
        return Signature.of(constructor, skip=instance, descriptions=descriptions, allow_open=True)
    except InvalidInput as error:
        raise EnvError(f"environment {label!r}: {error}") from None


def _describe_parameters(target: EnvFactory, constructor: Any) -> dict[str, str]:
    import docstring_parser

    documents = f"{inspect.getdoc(target) or ''}\n\n{inspect.getdoc(constructor) or ''}"
    return {entry.arg_name: entry.description or "" for entry in docstring_parser.parse(documents).params}
