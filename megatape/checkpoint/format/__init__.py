"""Files of a checkpoint.

* manifest.py: list of all files, with sizes and hashes (records.py). features.py: properties that a program must know to read
  the checkpoint.
* state.py: training state, in state.json. rng.py: states of the random number generators.
* tensors.py: writes weights and optimizer state to safetensors files. stored_weights.py: reads weights in any folder.
  frozen_weights.py: the folder with frozen weights, the base of a checkpoint.
* hashed_files.py: writes files, and hashes them at the same time.
"""
