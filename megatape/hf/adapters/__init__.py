"""LoRA adapters in peft's format: exporting and merging them."""
