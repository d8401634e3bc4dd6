"""Continuations and conversations of `megatape generate`: prompts, a batch of them, and the chat in the terminal."""
