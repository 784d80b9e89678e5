#!/bin/bash
# Lays the hidden tests over the repository, runs all tests, and writes the reward where Harbor looks for it.
cd /work/repo && cp -r /tests/repo/. . || exit 1
mkdir -p /logs/verifier
if python3 -m pytest -q -rA tests/test_solve.py tests/test_solve_backtracking.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
