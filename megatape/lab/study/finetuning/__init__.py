"""Comparing methods of fine-tuning a pretrained model to longer texts.

finetune.py    plan and runs of `megatape study finetune`: start here
base_model.py  the pretrained model
methods.py     the methods, and their settings of a run
measure.py     evaluates a run, or the base model
report.py      tables and picture
"""
