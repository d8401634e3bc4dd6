"""Passes over the documents of a unit. A document goes through these files in their order.

unit_passes.py        runs the first and the write pass over a unit
batches.py            reads, cleans and tokenizes documents, in batches (document_batch.py)
first_pass_unit.py    result of the first pass, in files with checksums (batch_file.py, checksummed_files.py)
reference_pass.py     stores keys of documents of other data directories, to compare with
decision_pass.py      compares the documents of all units, and decides which duplicates to drop
unit_writer.py        writes a unit: shards, tables of documents, summary
documents.py          texts of kept and dropped documents, in the results of both passes
"""
