"""Other forms of the index: columns for millions of shards (index_columns.py), and earlier versions (legacy.py)."""
