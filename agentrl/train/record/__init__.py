"""What a run writes down and what is made of it: the run folder, its ledger and seals, proofs, and replays."""
