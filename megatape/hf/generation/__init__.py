"""Generates text with a loaded model, from prompts or in conversations."""
