"""Restarting a run on one machine, for `megatape supervise`."""
