"""A stateful shell: working directory, variables, functions and options carry over from command to command.

Each command runs in a shell process of its own, which loads the state from a file and saves it there at its end. So a
command's end and exit code are those of a real process, known from the kernel; there is no prompt, no end marker and
nothing else in the output that a command could forge. Given up: jobs don't outlive their command (background processes
have `Sandbox.start`), and a shell killed at its timeout does not change the state.
"""

from __future__ import annotations

import secrets

from agentrl.tools.sandbox.base import ExecResult, Outcome, Sandbox

_BASH = r"""
__agentrl_save() {
  { builtin declare -p; builtin alias -p; builtin shopt -p; builtin set +o; builtin printf 'cd -- %q\n' "$PWD"
    builtin declare -f; } >"$1.new" 2>/dev/null && command mv -f "$1.new" "$1"
}
[ -r "$2" ] && . "$2" >/dev/null 2>&1
__agentrl_state=$2
trap '__agentrl_save "$__agentrl_state"' EXIT
eval "shift 2
$1"
"""
_POSIX = r"""
[ -r "$2" ] && . "$2" >/dev/null 2>&1
__agentrl_state=$2
trap '{ set; export -p; command printf "cd -- \"%s\"\n" "$PWD"; } >"$__agentrl_state" 2>/dev/null' EXIT
eval "shift 2
$1"
"""
# Functions come last, and builtins by name: a command may define functions called `declare`, `cd` or `set`.
# $1 is the command and $2 the state's file; the command itself sees no arguments. Bash reports read-only variables that
# can't be set again, and continues.


class Shell:
    """A shell in a sandbox, whose state is a file there (which commands may change).

    Args:
        sandbox: where it runs.
        file: the state's file; None is a new one.
        bash: whether to try bash, before sh.
    """

    def __init__(self, sandbox: Sandbox, *, file: str | None = None, bash: bool = True) -> None:
        self._sandbox = sandbox
        self.file = file or f"/tmp/.agentrl-shell-{secrets.token_hex(4)}"
        self.bash = bash

    async def run(self, command: str, *, timeout: float | None = None, limit: int | None = None) -> ExecResult:
        """Run a command line in the state of the earlier ones.

        Raises:
            SandboxError: the sandbox failed, not the command.
        """
        program, text = ("bash", _BASH) if self.bash else ("sh", _POSIX)
        result = await self._sandbox.exec(
            [program, "-c", text, program, command, self.file], timeout=timeout, limit=limit
        )
        if self.bash and result.outcome is Outcome.NOT_STARTED and result.exit_code == 127:
            self.bash = False
            return await self.run(command, timeout=timeout, limit=limit)
        return result
