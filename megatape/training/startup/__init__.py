"""Start of a run: everything between the process group and the first step.

In the order in which pretrain.py and build_trainer.py use them:

* rank_agreement.py opens the data, and checks that all ranks have the same configuration, code and data.
* memory_check.py checks that the planned memory (memory_plan.py) is available (available_memory.py). memory_errors.py explains
  errors about exhausted memory, here and while training.
* build_trainer.py builds the trainer from its parts: build_loader.py, build_evaluator.py and build_engine.py (model
  and optimizer), which tests kernels (working_kernels.py) and users' encodings on split sequences (split_sequence_check.py),
  and decides about CUDA graphs (graph_recording.py).
* load_starting_state.py fills the weights: from a checkpoint (resuming.py), or at step 0 (new_run_state.py), perhaps from
  another model (initial_weights.py, initial_weights_summary.py).
* run_description.py and export_warning.py tell the user what is about to be trained (attention_choice.py: by which backend).
"""
