"""Text generation by a loaded model, after a prompt or in a conversation."""
