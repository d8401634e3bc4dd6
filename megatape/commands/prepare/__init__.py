"""megatape prepare: from a source of documents to a data directory."""
