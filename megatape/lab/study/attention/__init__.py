"""Attention of trained models: stability under shifts, and pictures of patterns."""
