"""The embedded loop against TRL's GRPO trainer: `python -m benchmarks.vs_trl [STEPS] [ROUNDS] [TOKENS ...]`.

`python -m benchmarks.vs_trl pairs` compares a step of `dpo` (`benchmarks.vs_trl_pairs`), and
`python -m benchmarks.vs_trl tools` a task of several turns with a tool (`benchmarks.vs_trl_tools`).

Both train the same random Llama of 7 M parameters on the same single-turn task: the reward is the share of
digits among the 32 characters that a completion of 32 tokens should at least have. Both draw 8 samples on each
of 8 prompts a step at temperature 1, take one AdamW step on all 64 at the same learning rate, betas, clip and
norm, without a KL penalty, in float32. A prompt shows worked examples, another set in every task: agents'
prompts are long (tools, rules, history), and how long decides the ratio, so it is measured at several lengths,
counted in tokens with the template's. What can be saved is the ratio of tokens: a forest has a prompt once, rows
have it for each sample; each row of the table says which share of it was reached.

Each runs in a process of its own, with the same torch and transformers; TRL is that of `.venv-trl-functions`
(`make .venv-trl-functions/installed`). They take turns, in as many rounds as requested. TRL runs as we would tune it
for a CPU: float32 and no gradient checkpointing, which is faster here than its defaults. A step's time is everything
between two steps, the first (which warms up) left out: generating, scoring, learning; for us also publishing the
weights and storing the sessions. Ratios are of the fastest steps, by the clock and of processor time, which a busy
machine disturbs less (with OMP_NUM_THREADS=1: threads that wait for each other use it too). Each round has a seed of
its own. Rewards are means of the last steps, and what one waits for is the time until a step's mean reward is 0.9.

Rewards rise by a factor of two or more a step here, so a seed's luck in its first step shows to the end. That
both learn the same from the same is therefore looked at by itself: our trainer takes TRL's own first batch, and
the two updates of the weights are compared.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import agentrl
from agentrl.models.tiny import TinyShape, build, render
from agentrl.models.tokenizers import load_tokenizer
from agentrl.train.display.console import Display
from agentrl.types import Message, Session, StepResult, Task
from benchmarks.machine import machine

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / ".venv-trl-functions"
STEPS, GROUPS, SAMPLES, TOKENS, RATE = 8, 8, 8, 32, 3e-4
AIMS = {30: 1.5, 200: 2.2, 800: 5.8, 3000: 6.5}
"""Times as fast as TRL, by a prompt's tokens."""
LINE, BARE = 64, 17
"""Digits of an example, and the tokens of a prompt without any."""
LONG = 1000
"""Digits of a prompt above which TRL's rows take several passes."""
SPINS = {"GOMP_SPINCOUNT": "300000"}
"""OpenMP's default, which TRL gets: agentrl's threads wait asleep."""
GOAL = 0.9
GENERATION = "<|im_start|>assistant\n"
ALGO = {"lr": RATE, "betas": (0.9, 0.95), "normalize": "rollout"}


class StepClock(Display):
    """Keeps the processor seconds of this process at the end of each step, and says nothing.

    Attributes:
        ends: one for each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        """A step has ended."""
        super().step(metrics, curve)
        self.ends.append(time.process_time())


def token_ratio(prompt: int) -> float:
    """The tokens of a group as rows, over those of a forest."""
    return SAMPLES * (prompt + TOKENS) / (prompt + SAMPLES * TOKENS)


def question(index: int, digits: int) -> str:
    """The prompt of a task, whose examples have so many digits in all."""
    dice = random.Random(index)
    sizes = [LINE] * (digits // LINE) + [digits % LINE] * (digits % LINE > 0)
    shown = [f"Begin with {n % 10}: {str(dice.randrange(10**size)).zfill(size)}" for n, size in enumerate(sizes, index)]
    return "\n".join(["Write digits and nothing else.", *shown, f"Begin with {index % 10}."])


def share_of_digits(text: str) -> float:
    """The reward."""
    return min(1.0, sum(c.isascii() and c.isdigit() for c in text) / TOKENS)


def build_model(path: Path, tokens: int) -> tuple[int, int]:
    """The model that both sides begin with, a folder with a ChatML tokenizer, and prompts of about so many tokens.

    Returns:
        The digits that a prompt's examples have, and a prompt's tokens, its template's too.
    """
    digits = max(0, tokens - BARE)
    for _ in range(4):  # an example's own words are tokens too
        texts = [render([{"role": "user", "content": question(i, digits)}]) for i in range(50)]
        build(path, texts, shape=TinyShape(layers=8, width=256, heads=8, kv_heads=8, mlp=640, context=4096))
        found = len(load_tokenizer(path).encode_markup(f"{texts[0]}{GENERATION}"))
        if digits == 0 or abs(found - tokens) <= 1:
            break
        digits = max(0, digits + tokens - found)
    return digits, found


def ours(model: str, steps: int, digits: int, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Train with agentrl; rewards, seconds and processor seconds by step."""

    class Digits(agentrl.Env):
        """Write digits and nothing else."""

        max_turns = 1

        def tasks(self, split: str = "train") -> Any:
            return [{"id": str(i), "question": question(i, digits)} for i in range(steps * GROUPS)]

        def reset(self, task: Task, *, seed: int | None = None) -> str:
            return str(task["question"])

        def step(self, message: Message) -> StepResult:
            return StepResult(terminated=True)

        @agentrl.reward
        def digits(self, session: Session) -> float:
            return share_of_digits(session.nodes[-1].message.text)

    clock, began = StepClock(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = agentrl.train(
            Digits,
            display=clock,
            model=model,
            steps=steps,
            seed=seed,
            run_dir=f"{folder}/run",
            algo=ALGO,
            rollout={"groups_per_step": GROUPS, "group_size": SAMPLES, "turn_tokens": TOKENS, "temperature": 1.0},
            eval={"tasks": 1},
            engine={"device": device},
            trainer={"device": device},
        )
    return {
        "rewards": [row["reward/mean"] for row in result.metrics],
        "seconds": [row["time/step"] for row in result.metrics],
        "cpu": differences(began, clock.ends),
    }


def differences(began: float, ends: list[float]) -> list[float]:
    """Seconds of each step, of which the first includes what is before it."""
    return [b - a for a, b in zip([began, *ends], ends, strict=False)]


def trl_settings(folder: str, steps: int, seed: int, passes: int = 1, **other: Any) -> Any:
    """TRL's configuration: ours in its words, and fast on a CPU; with other settings in place of some.

    `passes` forward passes take a step's samples: all at once is fastest, and 24 GB hold 64 rows of 800 tokens.
    """
    from trl import GRPOConfig

    own: dict[str, Any] = {
        "per_device_train_batch_size": GROUPS * SAMPLES // passes,
        "gradient_accumulation_steps": passes,
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "num_generations": SAMPLES,
        "max_completion_length": TOKENS,
        "max_steps": steps,
        "seed": seed,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "temperature": 1.0,
        "beta": 0.0,
        "loss_type": "grpo",
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    return GRPOConfig(**own | other)


def theirs(model: str, steps: int, digits: int, seed: int) -> dict[str, Any]:
    """Train with TRL; rewards, seconds and processor seconds by step, and what it drew in the first and made of it."""
    sys.path.append(str(PACKAGES))
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found]

    ends: list[float] = []
    used: list[float] = []
    first: list[dict[str, Any]] = []
    tokenizer = AutoTokenizer.from_pretrained(model)

    def score(prompts: Any, completions: Any, completion_ids: Any, **_: Any) -> list[float]:
        rewards = [share_of_digits(c[0]["content"]) for c in completions]
        if not first:
            prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
            first.extend(
                {"prompt": p, "sampled": d, "reward": r}
                for p, d, r in zip(prompt_ids, completion_ids, rewards, strict=True)
            )
        return rewards

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            if not ends:
                model.save_pretrained(after_first)
            ends.append(time.perf_counter())
            used.append(time.process_time())

    after_first = f"{model}-after-trl"
    prompts = [[{"role": "user", "content": question(i, digits)}] for i in range(steps * GROUPS)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=tokenizer,
            reward_funcs=score,
            args=trl_settings(folder, steps, seed, passes=4 if digits > LONG else 1),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[Clock()],
        )
        began = time.perf_counter(), time.process_time()
        trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    times = {"seconds": differences(began[0], ends), "cpu": differences(began[1], used)}
    return {"rewards": rewards, **times, "first": first, "after_first": after_first}


def update_difference(model: Path, found: dict[str, Any]) -> float:
    """How far our update on TRL's first batch is from TRL's, as a share of TRL's."""
    from safetensors.torch import load_file

    from agentrl.config import AlgoConfig
    from agentrl.train.algorithms.returns import group_relative
    from agentrl.train.forest.packing import pack
    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
    from agentrl.types import Group, Message, Node, Sampling, Session, Status, Task

    asking, answering = Message(role="user", content=""), Message(role="assistant", content="")
    groups: dict[str, Group] = {}
    for number, sample in enumerate(found["first"]):
        prompt_ids, sampled = sample["prompt"], sample["sampled"]
        name = str(prompt_ids)
        group = groups.setdefault(name, Group(name, Task(id=name)))
        opening = Node(0, None, asking, prompt_ids, [False] * len(prompt_ids), [0.0] * len(prompt_ids))
        turn = Node(1, 0, answering, sampled, [True] * len(sampled), [0.0] * len(sampled), sampling=Sampling())
        session = Session(
            str(number), group.task, name, nodes=[opening, turn], status=Status.COMPLETED, reward=sample["reward"]
        )
        group.sessions.append(session)
    algo = AlgoConfig.model_validate(ALGO)
    trainer = TorchTrainer(model, algo=algo)
    batch = list(groups.values())
    trainer.step(pack(batch, group_relative(batch, algo, scale=True), trainer.config.token_budget))
    before = load_file(model / "model.safetensors")
    after = load_file(Path(found["after_first"]) / "model.safetensors")
    ours = dict(trainer.weights())
    apart = sum(float((ours[name] - after[name]).square().sum()) for name in after)
    return float((apart / sum(float((after[name] - before[name]).square().sum()) for name in after)) ** 0.5)


def seconds_to_goal(found: dict[str, Any]) -> float:
    """Until the end of the first step whose mean reward reaches the goal; infinite where none does."""
    reached = [step for step, reward in enumerate(found["rewards"]) if reward >= GOAL]
    return sum(found["seconds"][: reached[0] + 1]) if reached else float("inf")


def run(module: str, side: str, model: Path, *numbers: int) -> dict[str, Any]:
    """Run one side in a process of its own.

    Raises:
        SystemExit: it failed.
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= SPINS if side == "trl" else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", module, side, str(model), *map(str, numbers), str(out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise SystemExit(f"the {side} side failed:\n{done.stderr[-3000:]}")
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def take_turns(module: str, model: Path, steps: int, rounds: int, *numbers: int) -> dict[str, list[dict[str, Any]]]:
    """Run both sides as often as requested, and print their rewards; their results by side."""
    results: dict[str, list[dict[str, Any]]] = {"agentrl": [], "trl": []}
    for seed in range(rounds):
        for side, found in results.items():
            found.append(run(module, side, model, steps, *numbers, seed))
            print(f"  {side:8} rewards {' '.join(f'{r:.2f}' for r in found[-1]['rewards'])}", flush=True)
    return results


def least(results: Mapping[str, list[dict[str, Any]]], kind: str) -> dict[str, float]:
    """The fastest step of each side but the first ones, in seconds of a kind: seconds, cpu."""
    return {side: min(s for each in found for s in each[kind][1:]) for side, found in results.items()}


def print_sides(results: Mapping[str, list[dict[str, Any]]]) -> tuple[float, float]:
    """Print what both sides reached, and the ratios of their times, by the clock and of processor time."""
    clock, cpu = least(results, "seconds"), least(results, "cpu")
    for side, found in results.items():
        late = statistics.fmean(r for each in found for r in each["rewards"][-max(1, len(each["rewards"]) // 4) :])
        goal = statistics.median(map(seconds_to_goal, found))
        print(f"  {side:8} {clock[side]:6.2f} s a step, {cpu[side]:6.2f} s of processor time, ", end="")
        print(f"reward at the end {late:.3f}, {goal:.0f} s to {GOAL}")
    ratios = clock["trl"] / clock["agentrl"], cpu["trl"] / cpu["agentrl"]
    print(f"  trl / agentrl: {ratios[0]:.2f} by the clock, {ratios[1]:.2f} of processor time", flush=True)
    return ratios


def compare(wanted: int, steps: int, rounds: int) -> str:
    """Measure both sides at one length of prompt; a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        digits, tokens = build_model(model, wanted)
        print(f"prompts of {tokens} tokens", flush=True)
        results = take_turns("benchmarks.vs_trl", model, steps, rounds, digits)
        apart = update_difference(model, results["trl"][-1])
    (clock, cpu), most = print_sides(results), token_ratio(tokens)
    print(f"  our update on TRL's first batch differs from TRL's by {apart:.1e} of its length", flush=True)
    aim = f"{AIMS[wanted]:.1f}" if wanted in AIMS else ""
    return f"| {tokens} | {clock:.2f} | {cpu:.2f} | {most:.2f} | {cpu / most:.0%} | {aim} | {apart:.1e} |"


def main() -> None:
    if sys.argv[1:2] in (["pairs"], ["tools"]):
        from benchmarks import vs_trl_pairs, vs_trl_tools

        return (vs_trl_pairs if sys.argv[1] == "pairs" else vs_trl_tools).main(sys.argv[2:])
    steps, rounds, *lengths = [int(word) for word in sys.argv[1:]] + [STEPS, 1][len(sys.argv) - 1 :]
    print(machine(), flush=True)
    rows = [compare(tokens, steps, rounds) for tokens in lengths or AIMS]
    print("| prompt | TRL's time over ours | of processor time | ratio of tokens | share | aim | updates apart |")
    print("|---|---|---|---|---|---|---|", *rows, machine(), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] in (["agentrl"], ["trl"]):
        measured = (ours if sys.argv[1] == "agentrl" else theirs)(sys.argv[2], *map(int, sys.argv[3:6]))
        Path(sys.argv[6]).write_text(json.dumps(measured))
    else:
        main()
