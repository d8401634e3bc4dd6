"""Optimizers and their options, base class for updating whole matrices, and learning-rate schedules."""
