"""Prepares a corpus: from a source to a data directory, in any number of processes on any number of machines.

    command.py ── workers/           processes of the command (worker.py), started and watched (worker_pool.py)
        │         preparation.py     what a worker does: plan, units, passes, assembly
        │             ├── planning/          divides the source into units, and makes or resumes the plan
        │             ├── passes/            what happens to the documents of a unit, from reading to shards
        │             ├── queue/             which process does which unit or part next
        │             ├── shared_folder/     the folder with plan, results and leases, which is all that processes share
        │             └── assembly.py        the data directory, from finished units (part_summary.py)
        └──────── progress_totals.py the sum of the progress (progress.py) of all units

`workers`, `planning` and `passes` import `queue`, and all of them import `shared_folder`. options.py has the options. Beside a
preparation, dry_run.py shows the effects of cleaning rules and their costs (rule_costs.py), and status.py the progress in a
folder.

A document passes through these steps:

1. Plan. planning/planner.py divides the source into units, such as 64 MiB of a file, and stores the plan that decides every
   byte of the result (shared_folder/plan.py). Later commands resume with this plan.
2. Lease. command.py starts workers. Each takes a lease on a unit that nobody else is working on (queue/work_queue.py,
   shared_folder/unit_lease.py) and runs the passes below over it (passes/unit_passes.py).
3. First pass. passes/batches.py reads the unit's documents, applies the cleaning rules and tokenizes what they keep. From
   here on documents are rows of columns in batches (passes/document_batch.py), and no step handles them one by one.
   passes/first_pass_unit.py stores the batches, with hashes for the next pass. passes/reference_pass.py stores those of other
   data directories with which the documents are compared.
4. Decision pass. With the documents of all units known, passes/decision_pass.py decides which duplicates to drop.
5. Write pass. passes/unit_writer.py writes the kept documents of a unit: shards (data/shards/writer.py), tables of documents
   and a summary.
6. Assembly. One process moves the files of all units into the data directory and writes its index (assembly.py).

A corpus of one unit, or without rules about duplicates, takes the write pass alone, which then reads the source.

shared_folder/folder.py lists the folder's content and says why any process may be killed at any time.
"""
