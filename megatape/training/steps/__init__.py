"""Optimizer steps: their batches, computation and status, and how a run treats spikes and skipped steps."""
