"""Files about the documents of all units, written and read by the passes of a preparation.

sorted_keys.py  sorted hashes and keys of a unit's documents
unit_items.py   items of all units, such as the rows of documents to drop
arrays.py       small arrays
corruption.py   the error about a damaged file
"""
