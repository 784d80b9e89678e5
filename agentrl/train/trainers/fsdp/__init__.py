"""The torch trainer over several processes: FSDP2 shards weights, gradients and optimizer state.

settings.py    its settings, and what it refuses; plugin.py names it
trainer.py     the `Trainer` protocol over rank processes (../ranks)
rank.py        one rank: a torch trainer whose model is sharded, with its share of every batch
sharding.py    shards a transformers model by its layers
checkpoint.py  checkpoints in torch's distributed format, for any number of ranks
"""
