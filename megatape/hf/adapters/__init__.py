"""Exports LoRA adapters in peft's format, and merges them into their base."""
