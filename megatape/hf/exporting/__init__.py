"""Exports checkpoints to folders that transformers loads."""
