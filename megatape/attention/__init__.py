"""Causal attention over content and position state: backends, rotation and biases."""
