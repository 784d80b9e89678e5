"""The Megatron trainer: forests on Megatron-core, with every kind of parallelism.

trainer.py     the `Trainer` protocol over rank processes (../ranks); holds no weights and imports no Megatron
builder.py     how a rank joins the others and builds its part
layout.py      the parallel layout, checked before anything starts
copied.py      tensors replicated over tensor-parallel ranks, whose gradients are summed
rank.py        one rank: its model chunks, its shard of every forest, its optimizer
micro.py       a micro-batch of a rank's forest
table.py       a forest's attention table; attention.py reads it
passes.py      forward and backward by Megatron's schedules; the head that ends them is backends/head.py
moe.py         mixtures of experts: balance, drops, replay of routed experts
adapter.py     an adapter on the layers of every layout, the same tensors as on other trainers
update.py      the optimizer; checkpoint.py saves it with the weights
cpu.py         redirects CUDA calls to the CPU without a GPU
models/        load and export Hugging Face models, a table for each family; towers of images
"""

import warnings

warnings.filterwarnings("ignore", module=r"megatron\.core\b")  # recommendations: Apex, other flags
