"""Hugging Face folders: names, configuration, tokenizer, modelling code, generation, imported models."""
