"""megatape prepare: data directories from texts, conversations or generated problems."""
