"""The embedded loop against TRL's GRPO trainer: `python -m benchmarks.vs_trl [STEPS] [ROUNDS] [EXAMPLES ...]`.

`python -m benchmarks.vs_trl pairs` compares a step of `dpo`: see `benchmarks.vs_trl_pairs`.

Both train the same random Llama of 7 M parameters on the same single-turn task: the reward is the share of
digits among the 32 characters that a completion of 32 tokens should at least have. Both draw 8 samples on each
of 8 prompts a step at temperature 1, take one AdamW step on all 64 at the same learning rate, betas, clip and
norm, without a KL penalty, in float32. A prompt shows worked examples, another set in every task: agents'
prompts are long (tools, rules, history), and how long decides the ratio, so it is measured at several lengths,
no examples at all (about 30 tokens) among them.

Each runs in a process of its own and TRL in an environment of its own (`.venv-trl`, made here if it is
absent), one after the other, in as many rounds as requested. TRL runs as we would tune it for a CPU: float32
and no gradient checkpointing, which is faster here than its defaults. A step's time is everything between two
steps, the first (which warms up) left out: generating, scoring, learning; for us also publishing the weights
and storing the sessions. Each round has a seed of its own. Rewards are means of the last steps, and what one waits
for is the time until a step's mean reward is at least 0.9.

Rewards rise by a factor of two or more a step here, so a seed's luck in its first step shows to the end. That
both learn the same from the same is therefore looked at by itself: our trainer takes TRL's own first batch, and
the two updates of the weights are compared.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRL, TRL_ENVIRONMENT = "trl==1.16.0", ROOT / ".venv-trl"
STEPS, GROUPS, SAMPLES, TOKENS, RATE = 8, 8, 8, 32, 3e-4
EXAMPLES = (0, 12)
"""How many examples a prompt shows; 12 make it about 800 tokens."""
AIM, GOAL = 4.0, 0.9
GENERATION = "<|im_start|>assistant\n"
ALGO = {"lr": RATE, "betas": (0.9, 0.95), "normalize": "rollout"}


def question(index: int, examples: int) -> str:
    """The prompt of a task."""
    dice = random.Random(index)
    shown = [f"Begin with {n % 10}: {n % 10}{dice.randrange(10**63):063d}" for n in range(index, index + examples)]
    return "\n".join(["Write digits and nothing else.", *shown, f"Begin with {index % 10}."])


def share_of_digits(text: str) -> float:
    """The reward."""
    return min(1.0, sum(c.isascii() and c.isdigit() for c in text) / TOKENS)


def build_model(path: Path, examples: int) -> int:
    """The model that both sides begin with, a folder with a ChatML tokenizer; a prompt's tokens, its template's too."""
    from agentrl.models.tiny import TinyShape, build, render
    from agentrl.models.tokenizers import load_tokenizer

    texts = [render([{"role": "user", "content": question(i, examples)}]) for i in range(50)]
    build(path, texts, shape=TinyShape(layers=8, width=256, heads=8, kv_heads=8, mlp=640))
    return len(load_tokenizer(path).encode_markup(f"{texts[0]}{GENERATION}"))


def ours(model: str, steps: int, examples: int, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Train with agentrl; rewards and seconds by step."""
    import agentrl
    from agentrl.types import Message, Session, StepResult, Task

    class Digits(agentrl.Env):
        """Write digits and nothing else."""

        max_turns = 1

        def tasks(self, split: str = "train") -> Any:
            return [{"id": str(i), "question": question(i, examples)} for i in range(steps * GROUPS)]

        def reset(self, task: Task, *, seed: int | None = None) -> str:
            return str(task["question"])

        def step(self, message: Message) -> StepResult:
            return StepResult(terminated=True)

        @agentrl.reward
        def digits(self, session: Session) -> float:
            return share_of_digits(session.nodes[-1].message.text)

    with tempfile.TemporaryDirectory() as folder:
        result = agentrl.train(
            Digits,
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
    }


def trl_settings(folder: str, steps: int, seed: int) -> Any:
    """TRL's configuration: ours in its words, and fast on a CPU."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=GROUPS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=TOKENS,
        max_steps=steps,
        seed=seed,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def theirs(model: str, steps: int, examples: int, seed: int) -> dict[str, Any]:
    """Train with TRL; rewards and seconds by step, and what it drew in the first and made of it.

    Runs in TRL's environment, where agentrl is not.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    ends: list[float] = []
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

    after_first = f"{model}-after-trl"
    prompts = [[{"role": "user", "content": question(i, examples)}] for i in range(steps * GROUPS)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=tokenizer,
            reward_funcs=score,
            args=trl_settings(folder, steps, seed),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[Clock()],
        )
        began = time.perf_counter()
        trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    seconds = [b - a for a, b in zip([began, *ends], ends, strict=False)]
    return {"rewards": rewards, "seconds": seconds, "first": first, "after_first": after_first}


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


def run(side: str, model: Path, *numbers: int) -> dict[str, Any]:
    """Run one side in a process of its own."""
    python = str(TRL_ENVIRONMENT / "bin/python") if side == "trl" else sys.executable
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [python, str(Path(__file__).resolve()), side, str(model), *map(str, numbers), str(out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise SystemExit(f"the {side} side failed:\n{done.stderr[-3000:]}")
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def ensure_trl() -> None:
    """Make TRL's environment where it is absent."""
    python = TRL_ENVIRONMENT / "bin/python"
    if not python.exists():
        print(f"installing {TRL} into {TRL_ENVIRONMENT.name} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(TRL_ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*install, "torch", TRL], check=True)


def compare(examples: int, steps: int, rounds: int) -> None:
    """Measure both sides at one length of prompt."""
    results: dict[str, list[dict[str, Any]]] = {"agentrl": [], "trl": []}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        print(f"{examples} examples: prompts of about {build_model(model, examples)} tokens", flush=True)
        for seed in range(rounds):
            for side, found in results.items():
                found.append(run(side, model, steps, examples, seed))
                print(f"  {side:8} rewards {' '.join(f'{r:.2f}' for r in found[-1]['rewards'])}", flush=True)
        apart = update_difference(model, results["trl"][-1])
    rate = {
        side: GROUPS * SAMPLES / statistics.median(s for each in found for s in each["seconds"][1:])
        for side, found in results.items()
    }
    goal = {side: statistics.median(map(seconds_to_goal, found)) for side, found in results.items()}
    for side, found in results.items():
        late = statistics.fmean(r for each in found for r in each["rewards"][-max(1, steps // 4) :])
        print(f"  {side:8} {rate[side]:7.1f} samples/s, reward at the end {late:.3f}, {goal[side]:.0f} s to {GOAL}")
    print(f"  ratio agentrl / trl: {rate['agentrl'] / rate['trl']:.2f} (aim: at least {AIM} at equal or better reward)")
    if max(goal.values()) < float("inf"):
        print(f"  time to a mean reward of {GOAL}, trl / agentrl: {goal['trl'] / goal['agentrl']:.2f}")
    print(f"  our update on TRL's first batch differs from TRL's by {apart:.1e} of its length")


def main() -> None:
    if sys.argv[1:2] == ["pairs"]:
        from benchmarks import vs_trl_pairs

        return vs_trl_pairs.main(sys.argv[2:])
    steps, rounds, *examples = [int(word) for word in sys.argv[1:]] + [STEPS, 1][len(sys.argv) - 1 :]
    ensure_trl()
    for number in examples or EXAMPLES:
        compare(number, steps, rounds)
    print(f"machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores")


if __name__ == "__main__":
    if sys.argv[1:2] in (["agentrl"], ["trl"]):
        measured = (ours if sys.argv[1] == "agentrl" else theirs)(sys.argv[2], *map(int, sys.argv[3:6]))
        Path(sys.argv[6]).write_text(json.dumps(measured))
    else:
        main()
