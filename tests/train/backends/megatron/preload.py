"""What the pool's workers need, imported once by the process that they are forked from; see `world`."""

import gc
import importlib
import os
import warnings

os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
warnings.simplefilter("ignore")
importlib.import_module("agentrl.train.trainers.megatron.cpu").install()
for _module in (
    *(f"tests.train.backends.megatron.{work}" for work in ("work_models", "work_replay", "work_train")),
    *(
        "agentrl.train.algorithms.advantages.ppo",
        "agentrl.train.algorithms.policy_losses.gspo",
        "transformers.models.auto.modeling_auto",
    ),
):
    importlib.import_module(_module)
gc.collect()
gc.freeze()  # collections of the workers, one each time their groups change, would go through all of this and copy it
