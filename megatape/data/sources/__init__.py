"""Sources: read the documents in files and data sets.

source.py divides inputs into units (units.py) and selects the reader of a kind of source, which has a file of its own, by its
name in megatape/registry.py. reading.py runs a pass over a unit, asking for a decision about each document and counting all of
them.
"""
