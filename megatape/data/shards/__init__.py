"""Data directories: index.json, token shards and document tables.

entries.py       entries of the index
index.py         writes, reads and checks the index
index_formats/   other forms of the index: columns for large ones, and those of earlier versions
stored_split.py  a split, opened for reading: its token stream, documents and tokenizer
reading/         reads and verifies shards, from a shared file system, a URL or a cache
tables/          tables of documents
writer.py        writes shards
layout.py        layout of a shard
hashes.py        hashes of files, entries and documents
ledger.py        checks that no document is lost or counted twice
contents.py      summary of a directory, for its report
"""
