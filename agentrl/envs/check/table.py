"""All rules, in the order in which they are checked; `docs/check.md` lists them as well."""

from __future__ import annotations

from agentrl.envs.check import circumstances, scores
from agentrl.envs.check.rules import (
    alike,
    answers,
    canary,
    conditions,
    costs,
    data,
    episodes,
    fixtures,
    hostile,
    inputs,
    rewards,
    runtime,
    several,
    states,
    traces,
    variants,
)
from agentrl.envs.check.rules.base import Rule

RULES: tuple[Rule, ...] = (
    Rule("tasks", data.nonempty, "return tasks for every one of `splits`, or remove the split from `splits`"),
    Rule(
        "same_tasks", data.same_tasks, "generate tasks from a fixed seed, and from nothing that changes between calls"
    ),
    Rule("task_ids", data.task_ids, "leave ids out, or number them"),
    Rule("copies", data.copies, "remove the copies; to play a task more often, raise rollout.group_size"),
    Rule("task_data", data.task_data, "use plain data: text, finite numbers, lists, mappings"),
    Rule("marks", data.marks, "mark what overrides it too, and write the mark above other decorators"),
    Rule("tools", data.tool_schemas, "write a docstring and type hints of plain types"),
    Rule("parameters", data.parameter_types, "annotate it, as in `item: str`"),
    Rule(
        "failures",
        episodes.failures,
        "fix it; where an agent's input is wrong, raise agentrl.errors.ToolError, whose text the agent gets",
    ),
    Rule(
        "splits",
        alike.splits,
        "split by a hash of the task, or by ranges that do not overlap; else evaluation runs on training tasks",
    ),
    Rule("opening", episodes.opening, "end the opening messages with a user message"),
    Rule("roles", episodes.roles, "send a user or a tool message; many chat templates allow no other"),
    Rule("lengths", episodes.lengths, "return a part of it, and offer a tool or an argument for the rest"),
    Rule("endings", episodes.endings, "set `max_turns`, or return terminated=True or truncated=True from `step`"),
    Rule(
        "failing_tools",
        episodes.failing_tools,
        "fix it; where arguments are wrong, raise agentrl.errors.ToolError with a text for the model",
    ),
    Rule(
        "late_tools",
        episodes.late_tools,
        "make it `async def`, or run it in a sandbox: a thread can't be stopped, and changes the episode meanwhile",
    ),
    Rule("empty_results", episodes.empty_results, "return what was found or done, if only 'ok'"),
    Rule("reprs", episodes.reprs, "return text or plain data instead of an object"),
    Rule("prompts", alike.prompts, "put into the opening messages what the expert knows of the task"),
    Rule(
        "answer",
        answers.in_prompt,
        "remove it from the opening messages; what an agent is meant to copy belongs in the task's data",
    ),
    Rule("answer_in_tools", answers.in_tools, "describe what a tool does, and leave examples and tables to the tasks"),
    Rule(
        "answer_in_replies",
        answers.in_replies,
        "say what is wrong with a call or an answer, and not what would be right",
    ),
    Rule(
        "determinism", runtime.determinism, "use one random.Random(f'{task.id}/{seed}'), made in reset, for everything"
    ),
    Rule("stored_tasks", alike.stored, "use text as keys, and lists in place of tuples"),
    Rule("ranges", rewards.ranges, "bound the rewards, or declare their range"),
    Rule("rewarded", rewards.rewarded, "add a method with @agentrl.reward, or return step rewards"),
    Rule("expert", rewards.expert, "fix the expert or the reward"),
    Rule("demonstrator", rewards.demonstrator, "fix `demonstrate`, and draw its chance from `rng`"),
    Rule(
        "swallowed",
        rewards.swallowed,
        "catch only what an answer can cause (ValueError of float(answer)), and let the rest be raised",
    ),
    Rule("scores", scores.compare_scores, "change the reward, or declare `chance` where guessing is right that often"),
    Rule("chance", scores.chance, "set `chance` to what the random agent got, or remove it"),
    Rule("hidden", several.hidden, "leave it out of the other agents' messages"),
    Rule(
        "silent_partner",
        several.silent_partner,
        "give every agent its result, also where another one has said nothing or was cut off",
    ),
    Rule("order", several.order, "keep the moves of a round, and carry them out together when the last one is there"),
    Rule("fixtures", fixtures.fixtures, "fix the reward; or the fixture, where its credit is wrong"),
    Rule(
        "optional_arguments",
        variants.optional_arguments,
        "give the parameter a default that the tool can work with, or none",
    ),
    Rule("defaults", variants.defaults, "use None as the default, and make the list or mapping in the function"),
    Rule(
        "bad_calls",
        runtime.bad_calls,
        "answer every call once, in order, under its own id; `self.run_tools(message)` does",
    ),
    Rule(
        "secrets",
        canary.kept_secret,
        "parse it with ast.literal_eval or json; compare Path(…).resolve() with the allowed folder; use a sandbox",
    ),
    Rule(
        "hostile",
        hostile.hostile,
        "check lengths and values before they are used, and raise agentrl.errors.ToolError for what is not allowed",
    ),
    Rule("cut_off", conditions.cut_off, "set in `reset` all that a reward reads"),
    Rule("unseeded", conditions.unseeded, "let seed=None mean any seed: random.Random(seed) takes it"),
    Rule("task_kept", inputs.task_kept, "copy from the task in `reset`: all sessions of a group have the same one"),
    Rule("messages_kept", inputs.messages_kept, "make new messages: sessions keep those that were sent"),
    Rule("tools_kept", inputs.tools_kept, "add all tools in `__init__` or `reset`; the model is told of them once"),
    Rule("isolation", runtime.isolation, "keep state in `self`, none in the class or the module"),
    Rule(
        "state",
        states.saved_states,
        "put all that `step` and the rewards read into `state`, as plain data, and set all of it in `restore`",
    ),
    Rule("fork", states.forks, "copy lists and mappings; or remove `fork` where `state` and `restore` exist"),
    Rule("close", runtime.closing, "set attributes in __init__, and release in close only what was opened"),
    Rule("leaks", runtime.leaks, "close, join or kill it in `close`"),
    Rule("freed", costs.freed, "keep instances out of modules and classes, and functools.cache off methods"),
    Rule("memory", costs.memory, "keep what belongs to an episode in `self`, and give caches a size"),
    Rule(
        "instances", costs.instances, "load in a function of the module with functools.cache, which all instances share"
    ),
    Rule("growth", costs.growth, "return what is new; the agent has the earlier results in its conversation"),
    Rule("files", traces.files, "use tempfile, and remove it in `close`"),
    Rule("warnings", traces.told, "await it; catch what a thread raises and raise it in the next step"),
    Rule(
        "globals",
        runtime.globals_kept,
        "use random.Random(seed) or numpy.random.default_rng(seed), absolute paths, and env= of subprocess",
    ),
    Rule("blocking", runtime.blocking, "use async I/O; compute in a tool (without quick=True) or in asyncio.to_thread"),
    Rule("elsewhere", circumstances.elsewhere, "see what it depends on", alone=True),
)
