"""Scores of a suite: answers of a trained model or a baseline, and their records on disk."""
