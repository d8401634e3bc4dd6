"""Parts of the GPU benchmark, a module each. Helpers: attention_problem.py, raw_step.py and step_tables.py."""
