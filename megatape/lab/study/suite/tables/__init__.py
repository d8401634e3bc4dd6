"""A suite's tables and result files."""
