"""Parts of the GPU benchmark, a module each. The docstring of the package above has their table.

Three modules are no parts: attention_problem.py has inputs and exact results for attention.py, raw_step.py has the bare
training step, and step_tables.py the tables of steps.py.
"""
