"""Exports LoRA adapters in peft's format, and merges them into their base.

files.py     the format: names of files and tensors, and the record about the base. Start here
export.py    writes a LoRA run's trained weights to such files
merge.py     merges such files into their base, and writes a model folder
lora.py      merges matrices: used by merge.py, and by exports of complete models
"""
