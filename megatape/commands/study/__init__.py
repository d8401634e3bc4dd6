"""megatape study: the studies of docs/compare_encodings.md."""
