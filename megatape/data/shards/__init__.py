"""Data directories: index.json, token shards and document tables.

Reading: stored_split.py gives a split's token stream, documents and tokenizer; reader.py reads and verifies shards,
document_tables.py and table_file.py read tables, cache.py and data_folder.py fetch directories from a URL.
Writing: writer.py writes shards (layout.py), table_writer.py tables, index.py the index (entries.py, legacy.py).
Checking: hashes.py, verifier.py, ledger.py. contents.py summarizes a directory for its report.
"""
