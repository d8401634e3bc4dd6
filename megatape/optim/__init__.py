"""Optimizers with their options, optimizers of whole matrices, and learning-rate schedules."""
