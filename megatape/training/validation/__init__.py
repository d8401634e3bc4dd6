"""Validation: losses on the validation splits during training."""
