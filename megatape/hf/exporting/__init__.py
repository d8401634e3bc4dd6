"""Exports checkpoints to folders that transformers loads.

exporter.py         the export, step by step: start here
model_card.py       README.md from the template model_card.md; origins.py finds base model, license and data sets
tokenizer.py        tokenizer files; sentencepiece.py converts SentencePiece models to tokenizer.json
upload.py           uploads the folder to the Hugging Face hub
carried/            collects code for models that transformers has no class for, starting with collect.py

Weight files are written by ../weights/weight_files.py. ../families/ chooses the architecture.
"""
