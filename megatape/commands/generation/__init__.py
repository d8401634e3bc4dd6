"""Parts of `megatape generate`: reading prompts, continuing them in batches, and chatting in the terminal."""
