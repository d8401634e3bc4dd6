"""Reads, checks and writes the weight files in model folders."""
