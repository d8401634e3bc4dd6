"""Comparing methods of fine-tuning a pretrained model to longer texts."""
