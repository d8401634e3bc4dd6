"""Slurm jobs, code snapshots, preflight checks, restarts, container health.

preflight/     checks all ranks before a run: `megatape preflight`
slurm/         submits runs with a snapshot of the code: `megatape submit`
restarts.py    policy for restarting a run after a failure
supervise/     restarts a run on one machine by this policy: `megatape supervise`
health.py      health check of a container

Read restarts.py before supervise/ and slurm/job_script.py, which both follow it.
"""
