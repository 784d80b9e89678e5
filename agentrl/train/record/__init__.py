"""The record of a run: its folder, ledger and seals, and the proofs and replays that are made from them."""
