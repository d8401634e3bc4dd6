"""megatape data: what is in a data directory, and tokenizers."""
