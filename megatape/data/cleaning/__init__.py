"""Cleaning: edits the documents of a source, and decides which ones to write.

decisions.py applies the rules to one document after another. rule.py has their base classes; each other family of rules has a
file of its own. Rules about duplicates compare documents with each other: in memory within one unit, and across units by the
hashes and keys that first_pass.py stores and comparison.py compares.
"""
