"""megatape study: the studies of docs/studies.md."""
