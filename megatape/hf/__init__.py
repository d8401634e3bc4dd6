"""Conversion between MegaTAPE's models and transformers.

What users start:

exporting/         writes checkpoints as folders that transformers loads
importing/         prepares pretrained transformers models for training
loading/           loads models from any kind of model folder
generation/        generates text with loaded models
language_model.py  a trained model with text in and out, for use from Python

Reading folders, from their names to their weights:

folder_name.py     checks names of model folders before torch is imported
model_folder.py    kinds of model folders, and access to their weights
architecture.py, config_json.py, pretrained.py
                   reading transformers models
weights/           weights in checkpoints and transformers folders, by our parameter names
adapters/          LoRA adapters in peft's format

Terms of transformers:

families/          maps our models to transformers' architectures: names, configuration, code
modeling/          model code that exports carry if transformers has no class for a model
dtypes.py          precisions of exported weights
special_tokens.py  control tokens

Start with exporting/exporter.py, which uses most of these parts.
"""
