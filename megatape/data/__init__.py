"""From documents to batches: preparing shards of token ids, and reading them in the order of a run."""
