"""Prepares a corpus: from a source to a data directory, in any number of processes on any number of machines.

A document passes through these steps, each named with its file:

1. Plan. planner.py divides the source into units, such as 64 MiB of a file, and stores the plan that decides every byte of the
   result (plan.py). Later commands resume with this plan.
2. Lease. command.py starts workers (worker.py). Each takes a lease on a unit that nobody else is working on (work_queue.py,
   unit_lease.py) and runs the passes below over it (preparation.py).
3. First pass (unit_passes.py). batches.py reads the unit's documents, applies the cleaning rules and tokenizes what they keep.
   first_pass_unit.py stores the tokens, with hashes for the next pass.
4. Decision pass (decision_pass.py). With the documents of all units known, it decides which duplicates to drop.
5. Write pass (unit_passes.py). unit_writer.py writes the kept documents of a unit: shards (shards/writer.py), tables of
   documents and a summary.
6. Assembly (assembly.py). One process moves the files of all units into the data directory and writes its index.

A corpus of one unit, or without rules about duplicates, takes the write pass alone, which then reads the source.

All processes share one folder and nothing else. folder.py lists its content and says why any of them may be killed at any time.
"""
