"""The conformance suites of plug-ins that have none beside their own contract; each is imported from its kind's module.

A suite returns what it found wrong, a `ContractFinding` for each promise that is not kept: nothing, where the plug-in
keeps its contract. A check that fails by an exception of the plug-in's is a finding too, so that one failure hides no
other.
"""
