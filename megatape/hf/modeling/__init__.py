"""Model code that exports carry. transformers runs it without MegaTAPE."""
