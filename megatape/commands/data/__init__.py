"""megatape data: data directories and tokenizers."""
