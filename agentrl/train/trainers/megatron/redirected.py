"""All that a rank on a CPU loads, with torch redirected (`cpu`): for the process that such ranks are forked from."""

import importlib

from agentrl.train.trainers.megatron import cpu

cpu.install()
importlib.import_module("agentrl.train.trainers.megatron.rank")  # not before
