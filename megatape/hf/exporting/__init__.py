"""Export of checkpoints to folders that transformers loads."""
