"""Helpers without a subject of their own: files, units, tables, typed options, child processes, private names of torch."""
