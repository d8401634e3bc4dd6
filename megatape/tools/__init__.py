"""Tools around a run: planner/ estimates speed and memory, cluster/ submits, checks and restarts jobs."""
