"""DeepSpeed: its configuration, the engine, the ZeRO stages, its private names.

Where to look, following a step:

* distributed.py: joins the process group. internals.py: changes to DeepSpeed's behavior; compiler.py: delays an import.
* engine_options.py and deepspeed_config.py: options and DeepSpeed's configuration, derived from ours; mpu.py: our mesh for it.
* sharded_module.py: builds the model, sharded at stage 3.
* engine.py: passes, updates and evaluations; stages/: what differs between ZeRO stages.
* pass_result.py: gradient sums of a step and times of its passes; stopwatch.py: times passes. evaluation_losses.py: losses of
  evaluations.
* nonfinite.py and partial_gradients.py: gradients before the update.
* update.py and update_gate.py: whether to update; gated_optimizer.py and weight_step.py: the optimizer's step.
* matrices.py: whole matrices for optimizers such as Muon, made from matrix_pieces.py and kept in matrix_state.py.
* moving_average.py: moving average of the weights.
* state.py: master weights and optimizer state by parameter, from flat_state.py and piece.py. kinds.py names
  the tensors, tensors.py is the interface to checkpoints, and snapshot.py copies the state for background saves.
* replica_check.py: compares replicas between ranks.
"""
