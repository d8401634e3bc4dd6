"""Memory of a run: the plan, the check before the first step, and errors.

memory_plan.py       the memory that a rank needs, and the smallest change of settings that makes the run fit
available_memory.py  the memory available to a rank
memory_check.py      compares the two on all ranks
memory_errors.py     explains errors about exhausted memory, at the start and while training
"""
