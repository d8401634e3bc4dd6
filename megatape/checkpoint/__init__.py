"""Checkpoints: manager, manifest, tensors, reader, writer, and the rules for resuming.

Where to look:

* manager.py: manager of a run's checkpoints. interfaces.py and initial_weights.py say what it needs, besides
  megatape/run_environment.py.
* Saving: saver.py decides how, background.py runs a save beside training, run_writer.py writes and prunes (pruning.py),
  save_report.py reports.
* One checkpoint: contents.py; writer.py writes it in parallel, as planned by file_plan.py, inside a partial_folder.py.
* Formats: manifest.py, records.py and features.py; state.py and rng.py: training state; tensors.py: safetensors files, and
  hashed_files.py: files with recorded hashes.
* Reading: reader.py; base.py: the folder with frozen weights.
* Resuming: selection.py selects a checkpoint, candidate.py opens it, compatibility.py compares it with the run.
  fresh_start.py has the rules for starting from step 0.
"""
