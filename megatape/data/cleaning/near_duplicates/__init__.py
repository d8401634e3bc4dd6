"""Near duplicates: documents resembling an earlier one.

near_duplicates.py  the rule, by MinHash
stored_shingles.py  shingles of all documents, as the first pass stores them
near_decision.py    which documents to drop, given all pairs of similar ones
"""
