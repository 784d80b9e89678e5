"""The agent's prompts: the opening message in its two forms, and the messages of the one-command form.

The one-command form follows mini-swe-agent (github.com/SWE-agent/mini-swe-agent): each answer holds one command, run in
a shell of its own; the work is submitted by a command whose output begins with a fixed line.
"""

from __future__ import annotations

import re

from agentrl.envs.builtin.swe.limits import EpisodeLimits
from agentrl.tools.sandbox.base import ExecResult

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""mini-swe-agent's own word."""
OPENING = """\
The current directory is a git repository. {instruction}

Change the program, not its tests: others, which you can't see, will judge your work. {how}
{limits}"""
WITH_TOOLS = "Call `submit` when you are done."
WITH_BASH = """\
Answer with exactly one command: as a call of the tool `bash`, or as one code block:

```bash
your command
```

Every command runs in a new shell in the repository; directory and variables don't carry over. When you are done, run

```bash
echo {submit}
```
"""
FORMAT_ERROR = (
    "Error: give exactly one command in each answer, as one call of `bash` or as one ```bash code block; "
    f"you gave {{count}}. To hand in your work, run: echo {SUBMIT}"
)
_FENCE = "```"
_OPENING = re.compile(rf"{_FENCE}(?:bash|sh|mswea_bash_command)[^\S\n]*\n")


def opening(instruction: str, limits: EpisodeLimits, bash_only: bool) -> str:
    """The first message of an episode."""
    how = WITH_BASH.format(submit=SUBMIT) if bash_only else WITH_TOOLS
    return OPENING.format(instruction=instruction.strip(), how=how, limits=limits.words())


def commands(text: str) -> list[str]:
    """The shell commands in an answer's code blocks; in time linear in the answer, as its writer isn't trusted."""
    blocks, end = [], 0
    while (fence := _OPENING.search(text, end)) and (close := text.find(_FENCE, fence.end())) >= 0:
        blocks.append(text[fence.end() : close].strip())
        end = close + len(_FENCE)
    return [block for block in blocks if block]


def observation(result: ExecResult, text: str) -> str:
    """A command's result as mini-swe-agent shows it."""
    return f"<returncode>{result.exit_code}</returncode>\n<output>\n{text}\n</output>"


def submits(result: ExecResult) -> bool:
    """Return whether a command submitted the work: it succeeded, and its output's first line is the submit word."""
    first = result.stdout.lstrip().partition(b"\n")[0]
    return result.ok and first.strip() == SUBMIT.encode()
