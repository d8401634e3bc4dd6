"""Comparing encodings: variants, measures, curves and the report."""
