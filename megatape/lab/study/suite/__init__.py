"""The benchmark of position encodings on synthetic tasks."""
