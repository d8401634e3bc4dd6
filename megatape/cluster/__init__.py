"""Running on clusters: Slurm jobs, snapshots of their code and configuration, and a check of all ranks before a run."""
