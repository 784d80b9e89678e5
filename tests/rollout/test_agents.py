"""User agents: functions and command lines, under a deadline, and who is to blame for how they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.builtin.calculator import Calculator
from agentrl.errors import AgentError, AgentRLError, Blame, ConfigError, EngineError
from agentrl.rollout.episodes import functions
from agentrl.rollout.episodes.agents import CommandAgent, load_agent, play
from agentrl.rollout.episodes.functions import FunctionAgent, SessionUrls
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.rollout.workers.gateways import LocalGateway
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Message, Sampling, Session, Status, Task
from tests.cluster.test_server import alive
from tests.sessions.gateway.conftest import Serve, Served, serve  # noqa: F401 (a fixture)
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openai_agent" / "agent.py"
HI: Any = [{"role": "user", "content": "hi"}]


async def played(served: Served, agent: Any, timeout: float = 300, data: Any = None) -> Session:
    session = Session(f"s{len(served.store.ids())}", Task(id="t", data=data or {}), seed=3)
    return await play(LocalGateway(served.gateway, served.url), session, load_agent(agent), timeout, Sampling())


async def test_a_function_uses_a_plain_client_and_its_session_is_returned_sealed(serve: Serve) -> None:  # noqa: F811
    async def agent(task: Task, client: Any) -> None:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])

    async with serve() as served:
        session = await played(served, agent, data={"question": "why?"})
        assert (session.status, session.reward) == (Status.COMPLETED, None)
        assert [n.message.text for n in session.nodes] == ["why?", "hello"]
        assert served.store.load(session.id).nodes == session.nodes
        assert served.gateway.entries == {}


@pytest.mark.slow
async def test_many_agents_of_one_function_run_at_once_each_in_its_own_session(serve: Serve) -> None:  # noqa: F811
    async def agent(task: Task, client: Any) -> None:
        messages = [{"role": "user", "content": f"I am {task.id}"}]
        await client.chat.completions.create(model="m", messages=messages)

    async with serve(ScriptedEngine(latency=0.01)) as served:
        one = load_agent(agent)
        sessions = [Session(f"s{i}", Task(id=f"t{i}")) for i in range(40)]
        await asyncio.gather(
            *(play(LocalGateway(served.gateway, served.url), s, one, 300, Sampling()) for s in sessions)
        )
        assert [s.nodes[0].message.text for s in sessions] == [f"I am t{i}" for i in range(40)]


async def test_an_agent_that_raises_is_to_blame_unless_the_engine_let_it_down(serve: Serve) -> None:  # noqa: F811
    async def clumsy(task: Task, client: Any) -> None:
        await client.chat.completions.create(model="m", messages=HI)
        raise KeyError("oops")

    async def innocent(task: Task, client: Any) -> None:
        await client.with_options(max_retries=0).chat.completions.create(model="m", messages=HI)

    async with serve() as served:
        session = await played(served, clumsy)
        assert (session.status, session.error) == (Status.AGENT_ERROR, "KeyError: 'oops'")
        served.engine.fail = EngineError("gone")
        assert (await played(served, innocent)).status is Status.INFRA_ERROR


async def test_a_function_may_wait_for_the_gateway_without_its_event_loop(serve: Serve) -> None:  # noqa: F811
    """A synchronous client waited for the gateway of its own event loop, which waited for the function."""

    async def blocking(task: Task, client: Any) -> None:
        plain = openai.OpenAI(base_url=str(client.base_url), api_key=client.api_key, timeout=60, max_retries=0)
        plain.chat.completions.create(model="m", messages=HI)

    async with serve() as served:
        sessions = await asyncio.gather(*(played(served, blocking, timeout=120) for _ in range(2)))
        assert [(session.status, len(session.nodes)) for session in sessions] == [(Status.COMPLETED, 2)] * 2


async def test_a_function_that_blocks_beyond_its_time_is_left_alone(
    serve: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    pass_time: Callable[[float], None],
) -> None:
    """Its time passes once it blocks: on a busy machine it was cancelled before it had begun."""
    monkeypatch.setattr(functions, "STOP_SECONDS", 0.01)
    loop, goes_on, ended = asyncio.get_running_loop(), threading.Event(), threading.Event()

    async def blocking(task: Task, client: Any) -> None:
        loop.call_soon_threadsafe(pass_time, 60.0)
        goes_on.wait()
        try:
            await asyncio.sleep(0)
        finally:
            ended.set()

    async with serve() as served:
        session = await played(served, blocking, timeout=60)
        assert session.status is Status.TRUNCATED
    assert not ended.is_set()
    goes_on.set()
    assert await asyncio.to_thread(ended.wait, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [SystemExit(2), KeyboardInterrupt("its own"), asyncio.CancelledError("of its own"), BaseException("panic")]
)
async def test_an_agent_that_leaves_ends_its_own_session_alone(error: BaseException, serve: Serve) -> None:  # noqa: F811
    """`sys.exit()` in an agent ended the whole run without a word."""

    async def leaving(task: Task, client: Any) -> None:
        raise error

    async with serve() as served:
        session = await played(served, leaving)
        assert (session.status, type(error).__name__ in str(session.error)) == (Status.AGENT_ERROR, True)


async def test_an_agent_that_takes_too_long_is_cut_off_and_its_generation_aborted(
    serve: Serve,  # noqa: F811
    pass_time: Callable[[float], None],
) -> None:
    async def slow(task: Task, client: Any) -> None:
        await client.chat.completions.create(model="m", messages=HI)

    async def pass_time_of_its_turn(engine: ScriptedEngine) -> None:
        while not engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pass_time(60.0)

    async with serve(ScriptedEngine(in_turn(assistant("word " * 1000)), latency=0.05)) as served:
        session, _ = await asyncio.gather(played(served, slow, timeout=60), pass_time_of_its_turn(served.engine))
        assert session.status is Status.TRUNCATED
        assert "longer than 60 s" in session.error
        async with asyncio.timeout(60):
            while served.engine.running or not served.engine.aborted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert served.engine.aborted == 1


async def test_rewards_that_the_agent_posts_stand(serve: Serve) -> None:  # noqa: F811
    async def agent(task: Task, client: Any) -> None:
        await client.chat.completions.create(model="m", messages=HI)
        root = str(client.base_url).removesuffix("v1/")
        await client.post(f"{root}reward", body={"value": 0.5}, cast_to=object)

    async with serve() as served:
        assert (await played(served, agent)).reward == 0.5


PROGRAM = """
    import json, os, sys, urllib.request
    task = json.loads(os.environ["AGENTRL_TASK"])
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["question"]}]}).encode()
    for base, path, key in (("OPENAI_BASE_URL", "/chat/completions", "OPENAI_API_KEY"),):
        request = urllib.request.Request(os.environ[base] + path, body, {
            "authorization": "Bearer " + os.environ[key], "content-type": "application/json"})
        print(urllib.request.urlopen(request).read())
    assert os.environ["ANTHROPIC_BASE_URL"] and os.environ["ANTHROPIC_API_KEY"]
"""


@pytest.mark.slow
async def test_a_command_finds_its_addresses_and_its_task_in_its_environment(serve: Serve, tmp_path: Path) -> None:  # noqa: F811
    program = tmp_path / "agent.py"
    program.write_text(textwrap.dedent(PROGRAM))
    async with serve() as served:
        session = await played(served, f"python {program}", data={"question": "who?"})
        assert (session.status, session.error) == (Status.COMPLETED, None)
        assert [n.message.text for n in session.nodes] == ["who?", "hello"]


@pytest.mark.slow
async def test_a_command_that_fails_is_to_blame_with_its_last_words(serve: Serve) -> None:  # noqa: F811
    async with serve() as served:
        session = await played(served, f"{sys.executable} -c 'raise SystemExit(\"no idea\")'")
        assert session.status is Status.AGENT_ERROR
        assert "no idea" in session.error


@pytest.mark.slow
async def test_a_command_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    program = tmp_path / "hang.py"
    program.write_text(
        "import subprocess, sys, time, os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)\n"
    )
    agent = CommandAgent([sys.executable, str(program)])
    running = asyncio.create_task(agent.run(Task(id="t"), SessionUrls("", "", "")))
    await asyncio.to_thread(until, lambda: (tmp_path / "pids").exists() and bool((tmp_path / "pids").read_text()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(until, lambda: not any(map(alive, map(int, (tmp_path / "pids").read_text().split()))))


@pytest.mark.slow
async def test_a_command_ends_with_its_first_process_whatever_it_leaves_behind(serve: Serve, tmp_path: Path) -> None:  # noqa: F811
    """A child that had its error output kept the session open until `rollout.timeout`, and cut it then."""
    program, pid = tmp_path / "leave.py", tmp_path / "pid"
    program.write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "sys.exit('x' * 9000 + ' enough')\n"
    )
    async with serve() as served:
        session = await played(served, f"python {program}", timeout=300)
        assert session.status is Status.AGENT_ERROR
        assert session.error.endswith(" enough")
        until(lambda: not alive(int(pid.read_text())))


@pytest.mark.slow
async def test_a_command_gets_a_long_task_in_a_file_and_no_proxy_between_it_and_its_gateway(
    serve: Serve,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux refused the variable, which ended the run; and a company's proxy was asked for the gateway."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.com")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "another's")
    program = tmp_path / "agent.py"
    body = textwrap.dedent(PROGRAM).replace(
        'os.environ["AGENTRL_TASK"]', 'open(os.environ["AGENTRL_TASK_FILE"]).read()'
    )
    program.write_text(
        f"{body}\nassert not os.environ.keys() & {{'AGENTRL_TASK', 'ANTHROPIC_AUTH_TOKEN'}}\n"
        "assert os.environ['NO_PROXY'] == os.environ['no_proxy'] == 'example.com,127.0.0.1'\n"
    )

    async def function(task: Task, client: Any) -> None:
        await client.with_options(max_retries=0).chat.completions.create(model="m", messages=HI)

    async with serve() as served:
        session = await played(served, f"python {program}", data={"question": "who?", "book": "é" * 200_000})
        assert (session.status, session.error) == (Status.COMPLETED, None)
        session = await played(served, function)
        assert (session.status, session.error) == (Status.COMPLETED, None)


OWNER = """
import asyncio, sys
from agentrl.rollout.episodes.agents import CommandAgent
from agentrl.rollout.episodes.functions import SessionUrls
from agentrl.types import Task
asyncio.run(CommandAgent(sys.argv[1:]).run(Task(id="t"), SessionUrls("", "", "")))
"""


@pytest.mark.slow
def test_a_command_ends_with_all_its_children_when_its_run_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = ["sh", "-c", f"sleep 600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *program])
    until(pids.exists)
    owner.kill()
    owner.wait()
    until(lambda: not any(map(alive, map(int, pids.read_text().split()))))


KILLED_BEFORE_IT_KEEPS = """
import os
from agentrl.rollout.episodes import agents
class Killed:
    def keep(self, group):
        print(group, flush=True)
        os.kill(os.getpid(), 9)
agents._keeper = Killed
"""


@pytest.mark.slow
def test_a_command_never_begins_where_its_run_is_killed_before_it_is_kept(tmp_path: Path) -> None:
    """On a busy machine the program went on without anybody."""
    begun = tmp_path / "begun"
    command = [sys.executable, "-c", KILLED_BEFORE_IT_KEEPS + OWNER, "sh", "-c", f"echo > {begun}"]
    owner = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    until(lambda: not alive(int(owner.stdout)))
    assert not begun.exists()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("nowhere/agent.py:agent", "there is no file"),
        (f"{EXAMPLE}:agnet", "did you mean 'agent'"),
        (f"{EXAMPLE}:TOOL", "async def agent"),
        ("", "neither"),
        ("'half a quotation", "No closing quotation"),
        ("no-such-program --fast", "no program 'no-such-program'"),
        ("python no_such_file.py --fast", "no file 'no_such_file.py'"),
        ("solve.py", "no program 'solve.py' that can be run, and it is no path.py:function"),
        (print, "async def agent"),
    ],
)
def test_an_agent_that_cannot_be_loaded_is_named(agent: Any, words: str) -> None:
    with pytest.raises(AgentRLError, match=words) as caught:
        load_agent(agent)
    assert caught.value.blame is Blame.USER


def test_an_agents_file_may_define_dataclasses_under_postponed_annotations(tmp_path: Path) -> None:
    """dataclasses looks the class's module up in sys.modules, where a file's own was missing."""
    file = tmp_path / "planner.py"
    plan = "from dataclasses import dataclass\n@dataclass\nclass Plan:\n    steps: int\n"
    file.write_text(f"from __future__ import annotations\n{plan}async def agent(task, client): ...\n")
    assert load_agent(f"{file}:agent")


async def test_a_command_that_does_not_exist_is_the_users_to_mend(serve: Serve) -> None:  # noqa: F811
    async with serve() as served:
        with pytest.raises(ConfigError, match="no-such-program"):
            await played(served, "no-such-program --fast")


@pytest.mark.parametrize("mistake", [NameError("nam"), ImportError("no such module"), ConfigError("algo.lr=0")])
@pytest.mark.slow
async def test_a_mistake_in_an_agents_code_is_the_users_to_mend(mistake: Exception, serve: Serve) -> None:  # noqa: F811
    """It was the agent's, so that a misspelt name made a whole run of failed sessions."""

    async def misspelt(task: Task, client: Any) -> None:
        raise mistake

    async with serve() as served:
        with pytest.raises(ConfigError, match=str(mistake)):
            await played(served, misspelt)


async def test_an_agents_own_error_keeps_its_cause() -> None:
    async def agent(task: Task, client: Any) -> None:
        raise ValueError("bad")

    with pytest.raises(AgentError, match="ValueError: bad"):
        await FunctionAgent(agent).run(Task(id="t"), SessionUrls("http://127.0.0.1:1", "", "k"))


@pytest.mark.slow
async def test_the_example_agent_says_token_for_token_what_the_native_form_says(serve: Serve) -> None:  # noqa: F811
    """The same problem, the same words of the model: the trees must be equal, so the learning is."""
    env = Calculator()
    for number, task in zip(range(6), env.tasks("train"), strict=False):
        expert: list[Message] = []
        env.reset(task)
        native = Conversation(Session("n", task), TurnGenerator(renderer(), None), tools=env.tools.schemas())
        native.add(env.reset(task))
        while True:
            words = env.expert(native.messages)
            message = words if isinstance(words, Message) else assistant(words)
            expert.append(message)
            native.demonstrate(message)
            if not message.tool_calls:
                break
            native.add(await _answers(env, message))
        engine = ScriptedEngine(in_turn(*expert))
        async with serve(engine) as served:
            session = Session(f"e{number}", task)
            agent = load_agent(f"{EXAMPLE}:agent")
            await play(LocalGateway(served.gateway, served.url), session, agent, 300, Sampling())
        assert session.status is Status.COMPLETED
        last = len(session.nodes) - 1
        assert tree.path_ids(session, last) == tree.path_ids(native.session, len(native.session.nodes) - 1)
        assert session.counters.get("gateway/clean", 0) == len(expert) - 1
        assert await _reward(env, session) == 1.0


async def _answers(env: Calculator, message: Message) -> list[Message]:
    from agentrl.envs import calls

    return (await calls.step(env, message)).messages


async def _reward(env: Calculator, session: Session) -> float | None:
    from agentrl.envs import calls

    return (await calls.compute_rewards(env, session)).total


class Stuck(Calculator):
    """Waits for something that never comes."""

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        await asyncio.sleep(600)


@pytest.mark.slow
async def test_a_programs_episode_that_does_not_begin_ends_at_the_sessions_deadline() -> None:
    """Nothing but the program itself had a deadline, so the session, and with it the run, waited for ever."""
    limits = RolloutConfig(tool_timeout=0.1, turn_timeout=0.2, timeout=0.3)
    policy = Policy(renderer(), ScriptedEngine(lambda prompt: ""))
    with Store(":memory:") as store:
        async with serving("sleep 1", policy, store, limits) as program, asyncio.timeout(30):
            session = await program.play(Stuck(), Session("s", Task(id="t")), limits)
    assert (session.status, session.reward) == (Status.INFRA_ERROR, None)
    assert "Stuck.reset took longer than rollout.timeout=0.3 s" in (session.error or "")
