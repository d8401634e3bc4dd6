"""Attention of trained models: shifted positions, and pictures of patterns."""
