"""Packs documents into samples.

best_fit.py            the algorithm
arrangement.py         its result: which parts of a split make up each sample
arrangement_writer.py  writes it to a file (arrangement_layout.py), which stored_arrangement.py reads
"""
