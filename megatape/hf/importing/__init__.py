"""Imports pretrained transformers models: record, configuration, logits check, step-0 checkpoint.

importer.py      the import, step by step: start here
config.py        configuration of a run that starts from the model
check.py         compares our logits with those of transformers
record.py        import.json, and opening an import's weights for training
checkpoint.py    an import as a checkpoint of step 0, for exporting it without training
download.py      downloads a model before importing it

../pretrained.py and ../architecture.py read the model itself.
"""
