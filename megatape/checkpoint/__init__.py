"""Checkpoints: manager, manifest, tensors, reader, writer, and the rules for resuming."""
