"""Tables of documents: a row per document, with its length and its location in the source.

table_writer.py     the columns, and a writer
table_file.py       reads a file, checking its content
document_tables.py  all tables of a split
"""
