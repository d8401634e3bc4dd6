"""Tokenizers: SentencePiece, Hugging Face and tiktoken files behind one interface.

tokenizer.py has the interface, which sentencepiece.py and huggingface.py implement. files.py reads tokenizers from disk,
tiktoken.py converts rank files to tokenizer.json, fast.py speeds up encoding, byte_tokens.py decodes stray bytes,
comparison.py says how two tokenizers differ.
"""
