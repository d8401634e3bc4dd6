"""Validation while training: evaluator.py computes the losses (result.py) on samples that reader.py reads (batches.py)."""
