"""Slurm jobs, code snapshots, preflight checks, restarts, container health."""
