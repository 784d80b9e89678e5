"""Imports for authors of plug-ins: one module for each kind, and nothing deeper is promised.

    from agentrl.plugins.loss import LossConfig, PolicyLoss, Tokens

Each module names what a plug-in of its kind is made from, says how the settings name one, and has the conformance suite
that proves one (`check_loss`, `check_engine` …). What stands behind these names may move from version to version; the
names stay. Nothing heavy is imported before a name that needs it is asked for.

    kind of plug-in         module          named by
    learning algorithm      algorithm       algo=
    environment             environment     env=
    inference engine        engine          engine=
    Megatron model family   family          trainer.family=
    choice of groups        group_filter    rollout.filter=, rollout.priority=
    fork rule               fork_rule       rollout.branch=
    policy loss             loss            algo.loss=
    conversation format     renderer        model.renderer=
    reward from outside     reward          rewards.NAME=
    choice of tasks         sampler         rollout.sampler=
    sandbox backend         sandbox         an environment, or agentrl.plugins.sandbox.create
    software task           software_task   env=swe env.path=
    source of tools         tools           tools.NAME=
    metrics back end        tracker         metrics=[]
    trainer                 trainer         trainer=
    weight transport        transport       weights.transport=

Every setting takes a name, an import path (`package.module:NAME`) or a file (`path/to/file.py:NAME`). A package names
its plug-ins as entry points of the kind's group, which each module says.
"""
