"""Loads trained models from any kind of model folder.

load.py             loads a checkpoint, export, import or folder of transformers: start here
installed_model.py  loads weights into transformers' own classes
exact_tokenizer.py  tokenizers with the same ids as in training
loaded_model.py     the loaded model: logits and continuations
"""
