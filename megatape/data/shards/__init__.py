"""Data directories: index.json, shards of token ids and tables of documents."""
