"""From documents to batches: corpus -> tokenizer -> shards (prepare), and shards -> token stream -> order -> batches."""
