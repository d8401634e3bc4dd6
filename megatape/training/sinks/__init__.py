"""Sinks receive the metrics of a run: sink.py is their interface, and each other file writes to one destination."""
