"""What trained models are measured on, outside of training."""
