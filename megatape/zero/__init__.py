"""DeepSpeed: its configuration, the engine, the ZeRO stages, its private names.

engine.py makes the passes, updates and evaluations of a run. It imports the folders, and no folder imports it:

    engine.py ── setup/      process group, module and mesh as DeepSpeed needs them; changes to DeepSpeed
        │        passes/     forward and backward passes: losses, times, and gradients before the update
        │        update/     decides about an update, and makes the optimizer's step
        └─────── state/      master weights and optimizer state by parameter name, as checkpoints need them
                 stages/     what differs between ZeRO stages: where a rank's part of each tensor is

`passes` and `update` import `state`; `update`, `state` and `setup` import `stages`.

Reading order: engine_options.py and deepspeed_config.py (options, derived from the configuration without importing deepspeed),
engine.py, stages/, state/, passes/, update/, and setup/ when you need it. graph_limits.py has the settings that CUDA graphs
exclude.
"""
