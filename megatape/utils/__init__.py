"""Helpers that know nothing about training: files, text, typed options, child processes, torch's private names."""
