"""A training loop of one's own: groups from `agentrl.rollouts`, everything else in this file.

    python examples/scripts/own_loop.py env=calculator steps=3

It does what `agentrl train` does with the same settings, step for step and bit for bit, and is a place to try what a
plug-in can't express. A trainer of one's own takes the place of `make_trainer`: a group's sessions have the tokens,
which of them were sampled, their log-probabilities and versions (`agentrl.plugins.algorithm.Node`).
"""

import asyncio
import sys

import agentrl
from agentrl.plugins.algorithm import derive, make_algorithm, pack_credited
from agentrl.plugins.trainer import make_trainer


async def main(env: str, **settings: object) -> dict[str, float]:
    """Train; returns the last step's metrics."""
    async with agentrl.rollouts(env, **settings) as run:
        config = run.config
        algorithm = make_algorithm(config.algo)
        trainer = make_trainer(run.model, config.trainer, config.algo, total_steps=config.steps, seed=config.seed)
        metrics: dict[str, float] = {}
        batch = []
        async for group in run:
            batch.append(group)
            if len(batch) < config.rollout.groups_per_step:
                continue
            seed = derive(config.seed, "pack", run.stream.gate.published)
            _, forests = pack_credited(algorithm, batch, None, config.trainer.token_budget, seed)
            metrics = await asyncio.to_thread(trainer.step, forests)
            await run.publish(trainer.weights, trainer.version)
            scores = [session.score or 0.0 for group in batch for session in group.scored]
            print(f"step {run.stream.gate.published + 1}: reward {sum(scores) / max(len(scores), 1):.3f}")
            batch = []
        trainer.close()
        return metrics


if __name__ == "__main__":
    given = agentrl.parse_words(sys.argv[1:])
    asyncio.run(main(given.pop("env", "calculator"), **given))
