"""A trainer's rank processes, whatever they compute with: `trainer=megatron` and `trainer=fsdp` share these.

trainer.py     the `Trainer` protocol over rank processes; holds no weights
group.py       the processes, from the trainer's side: started, called and ended together
calls.py       one call on all of those, from any process
worker.py      one of them
balance.py     forests to data-parallel ranks, by cost
joined.py      what ranks computed, put together
contents.py    what a checkpoint holds, recorded and compared
"""
