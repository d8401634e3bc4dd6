"""Tokenizers: SentencePiece, Hugging Face and tiktoken files behind one interface."""
