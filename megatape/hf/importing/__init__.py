"""Imports pretrained transformers models: record, configuration, check of the logits, checkpoint of step 0."""
