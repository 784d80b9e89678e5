"""A script that starts slime or verl, read for its settings, and these as settings of ours."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentrl.errors import AgentRLError, ConfigError
from agentrl.overrides import parse_words
from agentrl.train.driver.setup import complete
from agentrl.train.migration.rules import Framework
from agentrl.train.migration.slime import SLIME
from agentrl.train.migration.verl import VERL

MOST_BYTES = 1 << 20
"""Of a script: those that start a run have kilobytes."""
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DOTTED = re.compile(r"[+~]*(([a-z_]\w*)(?:\.\w+)+)=(.*)", re.DOTALL)
SECTIONS = {"data", "actor_rollout_ref", "algorithm", "critic", "trainer", "reward", "reward_model"}
SECTIONS.add("custom_reward_function")
"""Sections of verl's settings, by one of which a script of verl's is known."""
_NAME = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
OF_PPO = ("gamma", "gae_lambda", "value_clip", "value_trunk_lr", "value_warmup")
"""Settings of `algo` that only algo=ppo has."""


def translate(script: Path) -> Iterator[str]:
    """The lines of `agentrl convert settings`: each setting with ours, what has none, and the command."""
    if not script.is_file() or script.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{str(script)!r}: there is no such script of at most {MOST_BYTES:,} bytes")
    flags, dotted = read_script(script.read_text("utf-8", "replace"))
    known = [name for name in flags if SLIME.rule(name) is not None]
    if not known and not dotted:
        raise ConfigError(
            f"{str(script)!r}: no flags of slime (--rollout-batch-size 32), no settings of verl (data.x=1)"
        )
    framework, theirs, dash = (VERL, dotted, "") if len(dotted) > len(known) else (SLIME, flags, "--")
    ours = dict(framework.always)
    yield f"{script}: {len(theirs)} settings of {framework.name}"
    for name, value in theirs.items():
        yield _line(framework, f"{dash}{name}", name, value, ours)
    for name, value in _derive(framework, theirs, ours).items():
        ours[name] = value
        yield f"follows: {name}={value}"
    yield "command: agentrl train " + " ".join(_quote(f"{name}={value}") for name, value in ours.items())
    if problem := _problem(ours):
        yield f"before it runs: {problem}"


def read_script(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The flags and the dotted settings of a script, with its variables' values where it sets them plainly."""
    flags: dict[str, str] = {}
    dotted: dict[str, str] = {}
    variables: dict[str, str] = {}
    flag: str | None = None
    for word in _words(text):
        word = _NAME.sub(lambda found: variables.get(found[1] or found[3], found[2] or found[0]), word)
        if setting := _DOTTED.fullmatch(word):
            dotted[setting[1]], flag = setting[3], None
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            flags[name], flag = (value, None) if equals else ("true", name)
        elif flag is None and (assigned := _ASSIGNED.fullmatch(word)):
            variables[assigned[1]] = assigned[2]
        elif flag is not None and word not in ("(", ")", "&&", "|", "--") and not word.startswith("$"):
            flags[flag] = word  # of several, as --eval-prompt-data NAME FILE has them, the last
        else:
            flag = None
    return flags, dotted if any(name.partition(".")[0] in SECTIONS for name in dotted) else {}


def _quote(word: str) -> str:
    """A word for the shell, which puts in what the script's variables are where it does not set them itself."""
    return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"' if "$" in word else shlex.quote(word)


def _words(text: str) -> Iterator[str]:
    """A script's words, without comments and Ray's own flags; lines that no shell could divide are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            words = []
        yield from words[words.index("--") + 1 :] if words[:1] == ["ray"] and "--" in words else words
        if not line.strip().startswith("-"):
            yield ")"


def _line(framework: Framework, shown: str, name: str, value: str, ours: dict[str, str]) -> str:
    """A setting in words; it is added to ours."""
    rule = framework.rule(name)
    if rule is None:
        return f"unknown: {shown} {value}"
    found = rule.value(value) if rule.ours else None
    if found is None or (rule.ours.startswith("env.columns") and found in ("prompt", "label")):
        return f"no setting: {shown} {value}: {rule.why or 'it is the default here'}"
    if name.endswith(("top-k", "top_k")) and found == "-1":
        return f"no setting: {shown} {value}: all tokens is the default"
    ours[rule.ours] = found
    return f"{shown} {value} -> {rule.ours}={found}" + (f" ({rule.why})" if rule.why and rule.values is None else "")


def _derive(framework: Framework, theirs: Mapping[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Return what follows from several settings; what only another algorithm has is taken out."""
    found = framework.derived(theirs)
    if (found.get("algo") or ours.get("algo")) != "ppo":
        for name in OF_PPO:
            ours.pop(f"algo.{name}", None)
    if ours.get("algo.loss", "clipped") != "clipped":
        ours.pop("algo.loss.dual_clip", None)
    return found


def _problem(ours: Mapping[str, str]) -> str:
    """Return what is wrong with the settings, in a sentence; '' where nothing is."""
    try:
        complete(parse_words(f"{name}={value}" for name, value in ours.items()))
    except AgentRLError as error:
        return str(error)
    return ""
