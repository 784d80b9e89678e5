"""Chains: several runs, one after the other, each an ordinary run that begins with what an earlier one ended with.

`layers` makes each stage's settings of those of the chain, `references` turns names of stages into what they wrote,
`planning` builds and checks all stages before the first begins, `running` trains them, `verification` proves them.
"""
