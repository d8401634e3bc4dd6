"""Helpers that know nothing of training: files, texts, typed options, child processes, private names of torch."""
