"""Slurm jobs: the runs of a job, its batch script, and its submission with a snapshot of the code.

`megatape submit` checks the runs (job_array.py), fills job.sh.jinja (job_script.py), and submits it (submission.py).
"""
