"""Measuring a policy without training it: one evaluation, and suites of them."""
