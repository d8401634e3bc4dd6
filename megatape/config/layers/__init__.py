"""Kinds of a model's layers: their pattern, and which encodings it may mix."""
