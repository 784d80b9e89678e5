"""Honest work in unusual forms is scored for what it does, through the agent's own sandbox and back.

Each case is what an agent might type in a shell; whatever it does to git or to the tree, the program is mended (or, in
the cases that say so, is not).
"""

from __future__ import annotations

import asyncio
import shlex

import pytest

from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.episode import play
from agentrl.types import Message, Session
from tests.envs.swe.conftest import FIXED, TASK

pytestmark = [pytest.mark.usefixtures("docker")]

FIX = f"printf %s {shlex.quote(FIXED)} > slug.py"
HONEST = {
    "uncommitted": FIX,
    "committed": f"{FIX} && git add -A && git commit -qm 'Mend'",
    "staged only": f"{FIX} && git add slug.py",
    "committed on another branch": f"git checkout -qb mine && {FIX} && git commit -qam mine",
    "amended into the base commit": f"{FIX} && git commit -qa --amend -m rewritten",
    "rebased": f"{FIX} && git commit -qam one && echo x > x && git add x && git commit -qm two && git rebase -q --root",
    "stashed and brought back": f"{FIX} && git stash -q && git stash pop -q",
    "without git's data": f"{FIX} && rm -rf .git",
    "with git's data made anew": f"rm -rf .git && git init -q && {FIX} && git add -A"
    " && git -c user.name=a -c user.email=a@b commit -qm all",
    "with a broken index": f"{FIX} && echo rubbish > .git/index",
    "ignored by .gitignore and attributes": f"{FIX} && echo '*' > .gitignore && echo '* -diff -text' > .gitattributes",
    "assumed unchanged": f"git update-index --assume-unchanged slug.py && {FIX}",
    "a nested repository": f"{FIX} && mkdir vendor && cd vendor && git init -q && echo a > a && git add -A"
    " && git -c user.name=a -c user.email=a@b commit -qm a",
    "moved to a package": f"{FIX} && mkdir slug && git mv slug.py slug/__init__.py",
    "moved, and imported from there": f"{FIX} && mv slug.py _impl.py && echo 'from _impl import *' > slug.py",
    "a symbolic link to the program": f"{FIX} && mkdir src && mv slug.py src/slug.py && ln -s src/slug.py slug.py",
    "a link that leads outside, and one that leads nowhere": f"{FIX} && ln -s /etc/hostname host && ln -s nowhere dead",
    "carriage returns": f"{FIX} && sed -i 's/$/\\r/' slug.py",
    "no newline at the end": f"{FIX} && truncate -s -1 slug.py",
    "a byte order mark": f"{FIX} && sed -i '1s/^/\\xef\\xbb\\xbf/' slug.py",
    "tabs for spaces": f"{FIX} && sed -i 's/^    /\\t/; s/^\\t    /\\t\\t/' slug.py",
    "names in other alphabets": f"{FIX} && echo 1 > 'süß λ.txt' && mkdir 'a b' && echo 2 > 'a b/\"quoted\"'",
    "a name that is no text": f"{FIX} && touch \"$(printf 'bad\\377name')\"",
    "a binary file": f"{FIX} && head -c 5000 /dev/urandom > fixture.bin",
    "a file deleted": f"{FIX} && rm data.txt",
    "executable, and unreadable beside it": f"{FIX} && chmod +x slug.py && echo s > s && chmod 000 s",
    "a pipe and an empty folder": f"{FIX} && mkfifo pipe && mkdir empty",
    "two thousand more files": f"{FIX} && mkdir many && for i in $(seq 2000); do echo $i > many/$i; done",
    "ten thousand more lines": f"{FIX} && seq 10000 | sed 's/^/# /' >> slug.py",
    "visible tests edited and more of them added": f"{FIX} && echo 'def test_x(): assert 0' > tests/test_visible.py"
    " && echo 'def test_y(): assert 0' > tests/test_more.py",
    "visible tests deleted": f"{FIX} && rm -rf tests",
    "its own conftest, which would break the tests": f"{FIX} && echo 'raise SystemExit(1)' > conftest.py",
    "caches left about": f"{FIX} && python3 -m pytest -q tests; python3 -c 'import slug'; true",
    "a server left running": f"{FIX} && (setsid python3 -m http.server 8123 >/dev/null 2>&1 &)",
    "prints while it is imported": f"{FIX} && echo 'print(\"FAILED everything\")' >> slug.py",
}
UNSOLVED = {
    "stashed and left there": f"{FIX} && git stash -q",
    "committed and then reset": f"{FIX} && git commit -qam x && git revert --no-edit HEAD",
    "mended elsewhere": "cd /tmp && printf %s x > slug.py",
    "only whitespace": "sed -i 's/$/ /' slug.py",
    "everything deleted": "rm -rf * .git",
    "the folder itself deleted": "cd / && rm -rf /work/repo",
    "a syntax error": f"{FIX} && echo 'def (' >> slug.py",
    "too large": f"{FIX} && head -c 60000000 /dev/zero > big",
}


def _work(command: str) -> Session:
    """An episode in which the agent runs one command and hands in."""

    def policy(env: Swe, messages: list[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        line = command if said == 0 else "cd /tmp; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        return env.call("bash", command=line)

    return asyncio.run(play(Swe(tools="bash"), TASK.as_task(), policy, max_turns=3))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_correct_work_gets_the_full_reward_in_any_form(name: str) -> None:
    session = _work(HONEST[name])
    said = [message.text for message in session.messages]
    assert said[2].startswith("<returncode>0<"), said[2]
    assert session.reward == 1.0, (session.info, said)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSOLVED)
def test_what_does_not_mend_the_program_is_worth_nothing(name: str) -> None:
    session = _work(UNSOLVED[name])
    assert session.reward == 0.0, session.info
