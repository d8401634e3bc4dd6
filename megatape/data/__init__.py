"""Data pipeline, from documents to the batches of a run: sources, cleaning, tokenizers, preparation, shards and their order.

Folders, in the order in which a document passes through them:

* io: opens local files and URLs, and reads them as lines or tar members.
* sources: reads the documents in files and data sets.
* cleaning: drops and edits documents.
* tokenizers: turn texts into token ids.
* prepare: runs the steps above in any number of processes. Its docstring follows a document step by step.
* shards: writes, verifies and reads token ids and document tables in a data directory.
* derived: merges data directories, or selects a part of one.
* training: orders the samples of one or several data directories, and packs them into batches.

finetuning and synthetic have sources of their own. formats converts data directories from and to other libraries' files.

Several of these share counts.py (documents read, dropped and written), document_entries.py (entries of the index about
documents) and printable.py (names with unprintable characters).
"""
