"""Near duplicates: documents resembling an earlier one.

near_duplicates.py  the rule, by MinHash
stored_shingles.py  shingles of all documents, as the first pass stores them
near_decision.py    which documents to drop, given all pairs of similar ones
"""

from typing import TYPE_CHECKING

from megatape.moved_modules import old_names

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
