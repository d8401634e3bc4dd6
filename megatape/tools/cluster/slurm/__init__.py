"""Slurm jobs: runs of a job, batch scripts, and submission with a snapshot of the code.

`megatape submit` reads the runs (job_array.py), checks them (job_check.py), fills the batch script job.sh.jinja
(job_script.py), and submits it with a snapshot of the code (submission.py). On the cluster, the script starts `megatape
pretrain --resume auto` with one task per rank. Depending on its exit status, the script restarts it or requeues the job
(restarts.py).
"""
