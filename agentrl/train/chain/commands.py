"""A chain on the command line."""

from __future__ import annotations

from agentrl.common.terminal import out, print_lines
from agentrl.overrides import Tree
from agentrl.train.chain.planning import plan_chain


def train_stages(*layers: Tree) -> bool:
    """Train a chain, or print its dry run; returns False where nothing worked in a stage."""
    plan = plan_chain(*layers)  # wrong words are answered before torch is loaded
    if plan.dry_run:
        print_lines(plan.lines())
        return True
    from agentrl.train.driver.api import run_chain

    result = run_chain(plan, owns_process=True)
    chain = f"chain: {result.chain} ({', '.join(result.stages)})"
    print_lines([f"{chain}; its policy: {result.checkpoint}" if result.trained else chain])
    if not result.trained:
        return result.worked
    out.print(result.tokens, highlight=False, markup=False, soft_wrap=True)
    return result.worked
