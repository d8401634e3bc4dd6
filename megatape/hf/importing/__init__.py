"""Imports pretrained transformers models: record, configuration, logits check, step-0 checkpoint."""
