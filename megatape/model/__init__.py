"""The transformer: equations of blocks and attention, and build.py, which adds parallelism and memory savings."""
