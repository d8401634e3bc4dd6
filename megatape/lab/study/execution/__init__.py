"""Executing the runs of a study: training and measuring in child processes, several at a time.

study.py        a study that trains: its folder (lock.py), its pool and its failures. Start here
pool.py         trains and measures several runs at a time (children.py)
engines.py      the ways to train, from which the pool chooses
run.py          a run with processes of its own
divergence.py   mark of a run that diverged, which is not trained again
one_process/    several runs in one process
measurement.py  measuring a trained model in a process of its own
task_evaluation.py
                evaluating it by `megatape evaluate`
"""
