#!/bin/bash
# Lays the hidden tests over the repository, runs all tests, and writes the reward where Harbor looks for it.
cd /work/repo && cp -r /tests/repo/. . || exit 1
mkdir -p /logs/verifier
if python3 -m pytest -q -rA tests/test_pointer.py tests/test_pointer_escapes.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
