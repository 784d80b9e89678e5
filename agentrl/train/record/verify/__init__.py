"""`agentrl verify`: a proof of what a run trained on, from its record.

`recorded` reads the run's files and what each step trained on, `run_checks` and `step_checks` are the checks,
`recomputed` computes credit and forests again, `delivery` loads checkpoints into an engine, `chains` checks a chain's
stages and what each began with. Nothing is written, so a run may be checked while it trains: what is beyond the last
row of its metrics is left out.
"""

from agentrl.train.record.verify.chains import ChainReport, verify_chain
from agentrl.train.record.verify.report import Check, Discrepancy, Report
from agentrl.train.record.verify.run_checks import verify

__all__ = ["ChainReport", "Check", "Discrepancy", "Report", "verify", "verify_chain"]
