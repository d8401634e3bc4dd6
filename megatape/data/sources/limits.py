"""Limits on the records of a source. The command line shows them, so this module imports nothing."""

# Limit of a line of JSON or of a text file. A document is tokenized as a whole, which takes about 60 times its size in memory.
MAX_RECORD_BYTES = 16 * 2**20
MAX_BAD_FRACTION = 0.01
# Default limit for the skipped part of a folder's files or bytes, and for tar samples without text.
MAX_SKIPPED_FRACTION = 0.1
