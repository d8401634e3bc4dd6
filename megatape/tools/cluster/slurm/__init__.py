"""Slurm jobs: runs of a job, batch scripts, and submission with a snapshot of the code.

`megatape submit` goes through these files in their order:

job.py            resources of the job, which are options of the command
job_array.py      the runs: a single one, or one for each task of a job array
job_check.py      checks before submitting
job_script.py     fills the batch script job.sh.jinja (batch_script.py)
submission.py     submits the script with a snapshot of the code

command_array.py  job arrays that distribute one command, such as `megatape study suite`

On the cluster, the script starts `megatape pretrain --resume auto` with one task per rank. Depending on its exit status, the
script restarts it or requeues the job (restarts.py in the folder above).
"""
