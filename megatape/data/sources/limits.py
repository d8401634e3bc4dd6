"""Limits on records. The command line shows them, so this module imports nothing."""

# Maximum size of a line of JSON or a text file. Tokenizing a document takes about 60 times its size in memory.
MAX_RECORD_BYTES = 16 * 2**20
MAX_BAD_FRACTION = 0.01
# Default limit on the fraction of a folder's files or bytes that are skipped, and of tar samples without text.
MAX_SKIPPED_FRACTION = 0.1
