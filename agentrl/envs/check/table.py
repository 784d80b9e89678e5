"""All rules, in the order in which they are checked; `docs/check.md` lists them as well."""

from __future__ import annotations

from agentrl.envs.check import data, episodes, hostile, rewards, runtime, states
from agentrl.envs.check.rules import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        "tasks",
        "every split has tasks",
        "return tasks for every one of `splits`, or remove the split from `splits`",
        data.nonempty,
    ),
    Rule(
        "same_tasks",
        "two instances give the same tasks in the same order",
        "generate tasks from a fixed seed, and from nothing that changes between calls",
        data.same_tasks,
    ),
    Rule("task_ids", "every task of a split has a unique id", "leave ids out, or number them", data.task_ids),
    Rule("task_data", "tasks can be stored", "use plain data: text, numbers, lists, mappings", data.task_data),
    Rule(
        "splits",
        "no task is in two splits",
        "split by a hash of the task, or by ranges that do not overlap; else evaluation runs on training tasks",
        data.split_overlap,
    ),
    Rule(
        "tools",
        "every tool has a name, a description and a schema that matches what it accepts",
        "write a docstring and type hints of plain types",
        data.tool_schemas,
    ),
    Rule(
        "parameters",
        "every parameter of a tool has a type",
        "annotate it, as in `item: str`",
        data.parameter_types,
    ),
    Rule(
        "failures",
        "episodes of the expert, a silent, a systematic and a random agent run without an error",
        "fix it; where an agent's input is wrong, raise agentrl.errors.ToolError, whose text the agent gets",
        episodes.failures,
    ),
    Rule(
        "opening",
        "the opening messages end with one that the agent can answer",
        "end the opening messages with a user message",
        episodes.opening,
    ),
    Rule(
        "roles",
        "system messages come first, and `step` returns no assistant messages",
        "send a user or a tool message; many chat templates allow no other",
        episodes.roles,
    ),
    Rule(
        "lengths",
        "no message has more than 400,000 characters",
        "return a part of it, and offer a tool or an argument for the rest",
        episodes.lengths,
    ),
    Rule(
        "endings",
        "episodes end",
        "set `max_turns`, or return terminated=True or truncated=True from `step`",
        episodes.endings,
    ),
    Rule(
        "failing_tools",
        "no tool fails at every call",
        "fix it; where arguments are wrong, raise agentrl.errors.ToolError with a text for the model",
        episodes.failing_tools,
    ),
    Rule(
        "answer",
        "the prompt does not contain the answer",
        "remove it from the opening messages; what an agent is meant to copy belongs in the task's data",
        episodes.answer_in_prompt,
    ),
    Rule(
        "determinism",
        "the same task and seed give the same episode",
        "use one random.Random(f'{task.id}/{seed}'), made in reset, for everything",
        runtime.determinism,
    ),
    Rule(
        "ranges",
        "the sum of step rewards is in `return_range`, whatever the agent does",
        "bound the rewards, or declare their range",
        rewards.ranges,
    ),
    Rule(
        "rewarded",
        "some episode has a reward",
        "add a method with @agentrl.reward, or return step rewards",
        rewards.rewarded,
    ),
    Rule(
        "expert",
        "the expert succeeds, and no other agent gets more",
        "fix the expert or the reward",
        rewards.expert,
    ),
    Rule(
        "noop",
        "an agent that says nothing does not get the maximum",
        "reward only what the task asks for",
        rewards.silence,
    ),
    Rule(
        "bad_calls",
        "invalid tool calls are answered",
        "answer every call once, in order, under its own id; `self.run_tools(message)` does",
        runtime.bad_calls,
    ),
    Rule(
        "hostile",
        "malformed, hostile and huge calls are answered, leave nothing behind, and are blamed on the agent",
        "check lengths and values before they are used, and raise agentrl.errors.ToolError for what is not allowed",
        hostile.hostile,
    ),
    Rule(
        "isolation",
        "concurrent instances behave as a single one does",
        "keep state in `self`, none in the class or the module",
        runtime.isolation,
    ),
    Rule(
        "state",
        "a state restored in another instance continues with the same results and rewards, and saving changes nothing",
        "put all that `step` and the rewards read into `state`, as plain data, and set all of it in `restore`",
        states.saved_states,
    ),
    Rule(
        "fork",
        "a fork continues with the same results and rewards, whatever happens in the original and in other forks",
        "copy lists and mappings; or remove `fork` where `state` and `restore` exist",
        states.forks,
    ),
    Rule(
        "close",
        "`close` may be called at any time, and twice",
        "set attributes in __init__, and release in close only what was opened",
        runtime.closing,
    ),
    Rule(
        "leaks",
        "`close` releases files, threads and processes",
        "close, join or kill it in `close`",
        runtime.leaks,
    ),
    Rule(
        "globals",
        "global random generators, the working directory and environment variables are not changed",
        "use random.Random(seed) or numpy.random.default_rng(seed), absolute paths, and env= of subprocess",
        runtime.globals_kept,
    ),
    Rule(
        "blocking",
        "no method blocks the event loop for more than 20 ms",
        "use async I/O; compute in a tool (without quick=True) or in asyncio.to_thread",
        runtime.blocking,
    ),
)
