"""Optimizer steps: stepper.py makes them.

prefetch.py reads batches ahead, status.py is what ranks exchange once per step, spike_policy.py decides about spikes, and
output.py is the result. readable_check.py ends a step whose data cannot be read, and divergence.py a run that skips too many.
"""
