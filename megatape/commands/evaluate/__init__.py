"""megatape evaluate: measurements of a trained model."""
