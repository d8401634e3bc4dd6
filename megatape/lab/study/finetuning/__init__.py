"""Fine-tuning a pretrained model to longer texts by several methods, and comparing them."""
