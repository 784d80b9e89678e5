"""`env=code` and the reward function `code_exec`: submitted code is scored by hidden tests, in a sandbox."""

from agentrl.envs.builtin.code.judging import Job, Verdict
from agentrl.envs.builtin.code.reward import code_exec, code_verdict

__all__ = ["Job", "Verdict", "code_exec", "code_verdict"]
