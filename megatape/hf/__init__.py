"""Conversion between MegaTAPE's models and transformers.

exporting/     writes checkpoints as folders that transformers loads
importing/     prepares pretrained transformers models for training
loading/       loads models from any kind of model folder
generation/    generates text with loaded models

model_folder.py
               kinds of model folders, and access to their weights
architecture.py, config_json.py, pretrained.py
               reading transformers models

families/      maps our models to transformers' architectures: names, configuration, code
modeling/      model code that exports carry if transformers has no class for a model
weights/       weights in checkpoints and transformers folders, by our parameter names
adapters/      LoRA adapters in peft's format
"""
