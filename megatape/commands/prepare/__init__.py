"""megatape prepare: turns a source of documents into a data directory."""
