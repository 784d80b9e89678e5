"""Wrong command lines: each ends at once with code 2 and one short sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from agentrl.train.driver import interrupt
from tests.command_line import run_agentrl

ENV = """
import agentrl
class {name}(agentrl.Env):
    splits = {splits}
    {before}
    def tasks(self, split="train"): {tasks}
    def reset(self, task, *, seed=None): return "say it"
    @agentrl.reward
    def said(self, session): return 0.5
"""


def env(name: str = "E", splits: str = "('train', 'eval')", before: str = "", tasks: str = "return [{'a': 1}]") -> str:
    return ENV.format(name=name, splits=splits, before=before, tasks=tasks)


FILES = {
    "good.py": env(),
    "two.py": env("One") + env("Two"),
    "no_env.py": "class NotEnv: pass\nvalue = 3\ndef function(): return 5\n",
    "syntax.py": "import agentrl\nclass E(agentrl.Env:\n",
    "raises.py": "1 / 0\n",
    "needs.py": "import no_such_library\n",
    "no_tasks.py": "import agentrl\nclass E(agentrl.Env): pass\n",
    "empty.py": env(tasks="return []"),
    "empty_generator.py": env(tasks="yield from ()"),
    "empty_eval.py": env(tasks="return [{'a': 1}] if split == 'train' else []"),
    "nothing.py": env(tasks="pass"),
    "numbers.py": env(tasks="return [1, 2]"),
    "no_train.py": env(splits="('test',)"),
    "text_splits.py": env(splits="'train'"),
    "no_splits.py": env(splits="()"),
    "image.py": env().replace('"say it"', "[{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {}}]}]"),
    "size.py": env(before="def __init__(self, size: int): self.size = size"),
    "broken_init.py": env(before="def __init__(self): raise RuntimeError('no data here')"),
    "recipe_typo.py": env(before="recipe = classmethod(lambda cls, model: {'algo.lrr': 1})"),
    "recipe_raises.py": env(before="recipe = classmethod(lambda cls, model: 1 / 0)"),
    "recipe_list.py": env(before="recipe = classmethod(lambda cls, model: [1])"),
    "agent.py": "async def solve(task, client): pass\ndef plain(task, client): pass\nvalue = 3\n",
    "agent_syntax.py": "async def solve(task, client:\n",
    "agent_exits.py": "raise SystemExit(3)\n",
    "text": "hello",
    "flow.yaml": "env: [1, 2\nsteps: {\n",
    "tab.yaml": "env: calculator\n\tsteps: 3\n",
    "list.yaml": "- a\n- b\n",
    "twice.yaml": "env: calculator\nalgo:\n  lr: 1.0\n  lr: 2.0\n",
    "tag.yaml": "env: !!python/object/apply:os.getcwd []\n",
    "typo.yaml": "env: calculator\nrollout: {groups_per_step: many}\n",
    "bert/config.json": json.dumps({"architectures": ["BertForMaskedLM"]}),
    "no_json/config.json": "{not json",
    "array/config.json": "[1]",
    "no_weights/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}),
    "no_tokenizer/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}),
    "bad_tokenizer/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}),
    "bad_tokenizer/tokenizer.json": '{"a": 1}',
    "cut_weights/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}),
    "cut_weights/model.safetensors": "no weights",
    "binary.yaml": "\0\1\2",
}
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"

MISTAKES = {
    # words
    "train": ["'env' is required", "agentrl envs"],
    "train env=calculator steps 3": ["'steps'", "key=value"],
    "train env=calculator =3": ["'=3'", "key=value"],
    "train env=calculator a..b=3": ["'a..b=3'", "key=value"],
    "train env=calculator rollout.=3": ["'rollout.=3'", "key=value"],
    "train env=calculator env=castle": ["'env' is given twice", "'env=calculator'", "'env=castle'"],
    "train env=calculator env.name=castle": ["'env' is given twice"],
    "train env=calculator rollout.group_size=2 'rollout={group_size: 3}'": ["'rollout.group_size' is given twice"],
    "train env=calculator --steps 3": ["--steps"],
    # types and ranges
    "train env=calculator steps=": ["steps=''", "integer"],
    "train env=calculator steps=1.5": ["steps=1.5", "integer"],
    "train env=calculator steps=-3": ["steps=-3", "greater than 0"],
    "train env=calculator steps.x=3": ["steps={'x': 3}", "integer"],
    "train env=calculator seed=-1": ["seed=-1"],
    "train env=calculator algo.lr=-1e-3": ["algo.lr", "greater than 0"],
    "train env=calculator algo.lr=.nan": ["algo.lr=nan", "finite"],
    "train env=calculator algo.lr=.inf": ["algo.lr=inf", "finite"],
    "train env=calculator algo.betas=[0.9]": ["algo.betas"],
    "train env=calculator engine.device=gpu": ["engine.device='gpu'", "'cpu' or 'cuda'"],
    "train env=calculator engine.server=3": ["engine.server=3"],
    "train env=[calculator]": ["env=['calculator']", "env=NAME"],
    "train env=calculator algo=3": ["algo=3", "algo=NAME", "algo.lr"],
    "train env=calculator rollout.session_tokens=20": ["turn_tokens 24 exceeds session_tokens 20"],
    "train env=calculator trainer.token_budget=10": ["trainer.token_budget=10", "rollout.turn_tokens=24"],
    "train env=calculator trainer.dtype=float16": ["float16", "bfloat16"],
    "train env=calculator trainer.tensor_parallel=2": [
        "tensor_parallel=2",
        "belongs to trainer=megatron, not trainer=torch",
    ],
    "eval env=calculator eval.tasks=0": ["eval.tasks=0", "greater than 0"],
    # environments
    "train env=": ["environment ''", "calculator"],
    "train env=nofile.py:E": ["no file 'nofile.py'"],
    "train env=good.py:F": ["'F'", "known: E"],
    "train env=two.py": ["file.py:NAME", "One, Two"],
    "train env=no_env.py": ["file.py:NAME", "none"],
    "train env=no_env.py:NotEnv": ["NotEnv", "no agentrl.Env"],
    "train env=no_env.py:value": ["is 3", "no environment"],
    "train env=no_env.py:function": ["int", "no agentrl.Env"],
    "train env=syntax.py": ["syntax.py", "SyntaxError", "line 2"],
    "train env=raises.py:E": ["raises.py", "ZeroDivisionError"],
    "train env=needs.py:E": ["needs.py", "no_such_library"],
    "train env=no_tasks.py": ["E has no tasks(split)"],
    "train env=empty.py": ["E has no tasks in the split 'train'"],
    "train env=empty_generator.py": ["E has no tasks in the split 'train'"],
    "train env=empty_eval.py": ["E has no tasks in the split 'eval'"],
    "train env=nothing.py": ["E.tasks", "returned None"],
    "train env=numbers.py": ["E.tasks gave 1", "mapping"],
    "train env=no_train.py": ["no split 'train'", "splits: test"],
    "train env=text_splits.py": ["E.splits", "'train'"],
    "train env=no_splits.py": ["E.splits", "()"],
    "train env=size.py": ["env.size is missing"],
    "train env=size.py env.size=big": ["env.size = 'big'", "integer"],
    "train env=size.py env.size=3 env.sise=3": ["env.sise", "known: env.size"],
    "train env=calculator env.max_steps=-3": ["env.max_steps = -3"],
    "train env=broken_init.py": ["no data here"],
    "train env=recipe_typo.py": ["recipe", "recipe_typo.py", "'algo.lrr'", "'algo.lr'"],
    "train env=recipe_raises.py": ["recipe", "recipe_raises.py", "ZeroDivisionError"],
    "train env=recipe_list.py": ["recipe", "recipe_list.py", "[1]"],
    "eval env=empty.py policy=noop": ["E has no tasks in the split 'eval'"],
    "check env=nosuch": ["'nosuch'", "calculator"],
    "check env=size.py": ["env.size is missing"],
    # models
    "train env=calculator model=": ["model ''", "known: smollm2-135m, tiny"],
    "train env=calculator model=text": ["model='text' is a file", "folder"],
    "train env=calculator model=.": ["model='.'", "config.json is missing"],
    "train env=calculator model=no_json": ["config.json is unreadable"],
    "train env=calculator model=array": ["config.json holds a list"],
    "train env=calculator model=bert": ["BertForMaskedLM"],
    "train env=calculator model=no_weights": ["lacks model.safetensors"],
    "train env=calculator model=no_tokenizer": ["lacks its tokenizer"],
    "train env=calculator model=bad_tokenizer": ["bad_tokenizer", "can't be read"],
    "train env=calculator model=cut_weights": ["model.safetensors", "10 bytes"],
    "train env=calculator model.renderer=nosuch": ["model.renderer 'nosuch'", "gpt-oss"],
    "eval env=calculator policy=nosuch": ["policy 'nosuch'", "known", "folder"],
    "eval env=calculator model=text": ["model='text' is a file"],
    "serve": ["'model' is required"],
    "serve model=tiny": ["model='tiny'"],
    "serve model=text": ["model='text' is a file"],
    "models get tiny": ["'tiny'", "smollm2-135m"],
    "models check text": ["model='text' is a file"],
    "check renderer=nosuch": ["'nosuch'", "known"],
    "check renderer=text": ["text", "can't be read"],
    "check renderer=.": ["no tokenizer.json"],
    # engines, trainers, algorithms
    "train env=calculator engine=nosuch": ["engine 'nosuch'", "sglang"],
    "train env=calculator engine=nosuch:make": ["engine='nosuch:make'", "no module 'nosuch'"],
    "train env=calculator engine=agentrl.types:nosuch": ["no 'nosuch' in agentrl.types"],
    "train env=calculator engine=raises.py:make": ["importing it raised ZeroDivisionError"],
    "train env=calculator engine=vllm engine.python=/no/such/python": [
        "engine.python='/no/such/python'",
        "no such file",
    ],
    "train env=calculator engine=sglang engine.url=nonsense": ["engine.url='nonsense'", "http://host:port"],
    "train env=calculator engine.url=http://127.0.0.1:1": ["engine.url", "engine=local"],
    "train env=calculator fleet.urls=[http://127.0.0.1:1]": ["fleet.urls", "engine=local"],
    "train env=calculator trainer=nosuch": ["trainer 'nosuch'", "megatron"],
    "train env=calculator trainer=agentrl.types:nosuch": ["no 'nosuch' in agentrl.types"],
    "train env=calculator algo=nosuch": ["algorithm 'nosuch'", "grpo"],
    "train env=calculator algo=:": ["algo=':'", "package.module:NAME"],
    "train env=calculator algo=nosuch:ALGORITHM": ["no module 'nosuch'"],
    "train env=calculator algo=agentrl.types:Session": ["no algorithm"],
    "train env=calculator policy=expert": ["policy='expert'", "agentrl eval"],
    # agent programs
    "train env=calculator agent=": ["agent=''", "is empty"],
    "train env=calculator agent=nofile.py:solve": ["no file 'nofile.py'"],
    "train env=calculator agent=agent.py:solv": ["no 'solv'", "did you mean 'solve'"],
    "train env=calculator agent=agent.py:plain": ["agent.py:plain", "async def"],
    "train env=calculator agent=agent.py:value": ["agent.py:value", "async def"],
    "train env=calculator agent=agent_syntax.py:solve": ["SyntaxError", "agent_syntax.py"],
    "train env=calculator agent=agent_exits.py:solve": ["SystemExit: 3"],
    "train env=calculator agent=no-such-program": ["no program 'no-such-program'"],
    "train env=calculator 'agent=python nofile.py'": ["no file 'nofile.py'"],
    'train env=calculator "agent=\'half"': ["No closing quotation"],
    "eval env=calculator agent=nofile.py:solve": ["no file 'nofile.py'"],
    # files of settings
    "train -c nowhere.yaml": ["nowhere.yaml", "No such file"],
    "train -c .": ["'.'", "directory"],
    "train -c flow.yaml": ["flow.yaml", "line 2"],
    "train -c tab.yaml": ["tab.yaml", "line 2"],
    "train -c list.yaml": ["list.yaml", "a list"],
    "train -c text": ["'text'", "a str"],
    "train -c twice.yaml": ["line 4", "'lr' is given twice"],
    "train -c tag.yaml": ["tag.yaml", "line 1"],
    "train -c binary.yaml": ["binary.yaml", "not YAML"],
    "train -c typo.yaml": ["rollout.groups_per_step='many'", "integer"],
    # the rest
    "check": ["env=…", "sandbox=…"],
    "check env=calculator sandbox=docker": ["env=…"],
    "check nosuch=3": ["'nosuch'"],
    "check sandbox=nosuch": ["'nosuch'", "docker"],
    "serve model=text port=99999": ["port=99999", "65535"],
    "serve model=text host=999.1.1.1": ["host=999.1.1.1"],
    "serve model=text env=calculator": ["'env'"],
    "nosuch": ["nosuch"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("bad_tokenizer", "no_tokenizer"):
        (folder / name / "model.safetensors").write_bytes(NO_TENSORS)
    return folder


@pytest.mark.parametrize("line", MISTAKES)
@pytest.mark.slow
def test_a_mistake_ends_with_code_2_and_one_sentence(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(interrupt, "run", lambda work, *_, **__: pytest.fail(f"it started {work}"))
    before = sorted(os.listdir())
    code = run_agentrl(*shlex.split(line))
    said = capsys.readouterr().err
    assert code == 2, said
    assert [part for part in MISTAKES[line] if part not in said] == [], said
    assert len(said) < 1000
    assert said.count("\n") == 1 or "Usage:" in said
    assert sorted(os.listdir()) == before
