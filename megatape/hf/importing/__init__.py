"""Importing pretrained models of transformers: checks, configuration, checkpoint, record."""
