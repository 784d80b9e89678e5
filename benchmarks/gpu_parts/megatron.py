"""Megatron-core, one rank, against the torch trainer: the same forests, log-probabilities, one update, and time."""

from __future__ import annotations

from agentrl.config import AlgoConfig
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.trainer import MegatronTrainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from benchmarks.gpu_parts.report import SMOLLM2, Report
from benchmarks.gpu_parts.trees import forests


def run(report: Report) -> None:
    """Compare in float32, then time a step in bfloat16."""
    path = report.folder(SMOLLM2, **({} if report.small else {"num_hidden_layers": 8, "vocab_size": 8192}))
    vocabulary = 512 if report.small else 8192
    size = {"samples": 3, "prompt": 40, "turns": 4, "turn": 6} if report.small else {"prompt": 2048}
    batch = forests(vocabulary, budget=1 << 20, **size)
    algo = AlgoConfig(lr=1e-3)

    def equal() -> None:
        ours = TorchTrainer(path, TorchConfig(device=report.device), algo)
        theirs = MegatronTrainer(path, MegatronConfig(ranks=1), algo, total_steps=1, seed=0)
        try:
            apart = (ours.logprobs(batch)[0] - theirs.logprobs(batch)[0]).abs().max()
            report.below("float32: largest |Δ log-probability| from the torch trainer", float(apart), 1e-3)
            norms = [trainer.step(batch)["grad_norm"] for trainer in (ours, theirs)]
            report.below("float32: relative difference of the gradient's norm", abs(norms[1] / norms[0] - 1), 1e-3)
            after = dict(theirs.weights())
            moved = max(float((tensor.cpu() - after[name].cpu()).abs().max()) for name, tensor in ours.weights())
            report.below("float32: largest difference of a weight after one update, in learning rates", moved / 1e-3, 2)
            means = [float((tensor.cpu() - after[name].cpu()).abs().mean()) for name, tensor in ours.weights()]
            report.below("float32: largest mean difference of a tensor, in learning rates", max(means) / 1e-3, 0.05)
        finally:
            theirs.close()

    def speed() -> None:
        seconds = {}
        config = TorchConfig(device=report.device, dtype="bfloat16")
        trainer = TorchTrainer(path, config, algo)
        seconds["torch"] = report.seconds(lambda: trainer.step(batch))
        megatron = MegatronTrainer(path, MegatronConfig(ranks=1, dtype="bfloat16"), algo, total_steps=9, seed=0)
        try:
            seconds["megatron"] = report.seconds(lambda: megatron.step(batch))
        finally:
            megatron.close()
        report.add("bfloat16: a step's time, of the torch trainer's", seconds["megatron"] / seconds["torch"])

    report.attempt("equality", equal)
    report.attempt("speed", speed)
