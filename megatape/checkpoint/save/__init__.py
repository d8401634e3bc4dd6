"""Saving: from a request of the manager to a complete checkpoint.

saver.py saves at once or in the background (background.py). run_writer.py captures the run's state in contents.py, lets
writer.py write it, and removes old checkpoints (pruning.py). writer.py distributes the tensors over files (file_plan.py,
tensor_writes.py) in a partial folder (partial_folder.py), which gets its name when it is complete. save_report.py reports
successes and failures.
"""
