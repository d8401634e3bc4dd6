"""Sources: read the documents in files and data sets.

source.py divides inputs into units (units.py) and selects the reader of a kind of source by its name in megatape/registry.py.
reading.py runs a pass over a unit, asking for a decision about each document (document.py) and counting all of them.
expected.py compares the files with a list, and limits.py has the limits of records.

Readers:

text_files.py               files with one document each
json_lines.py               lines of JSON, C4, and documents kept by a preparation (kept_documents.py)
csv_files.py                rows of CSV and TSV files
parquet.py, arrow_files.py  tables with a text column (text_columns.py), which child processes read (isolated_reader.py)
tars.py                     WebDataset tars
hub.py                      data sets of the Hugging Face hub

fields.py turns records with fields into documents.
"""
