"""Scoring trained models and baselines, and the records of their scores."""
