"""Running on clusters: Slurm jobs, snapshots of what they run, and the check of all ranks before a run."""
