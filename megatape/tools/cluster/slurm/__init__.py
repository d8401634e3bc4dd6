"""Slurm jobs: the runs of a job, its batch script, and its submission with a snapshot of the code.

`megatape submit` reads the runs (job_array.py), checks them (job_check.py), fills the batch script job.sh.jinja
(job_script.py), and submits it with a snapshot of the code (submission.py). On the cluster, the script starts `megatape
pretrain --resume auto` with one task per rank, and decides by its exit status whether to start it again or to requeue the job
(restarts.py).
"""
