"""Models between MegaTAPE and transformers.

exporting/     a checkpoint becomes a folder that transformers loads
importing/     a folder of transformers becomes the start of a run
loading/       a folder of any kind becomes a model that is ready to run
generation/    such a model continues texts and answers in conversations

model_folder.py
               the kinds of folders that hold a model, and their weights
architecture.py, config_json.py, pretrained.py
               models in folders of transformers

families/      our models in the terms of transformers' architectures: names, configuration, code
modeling/      the code that exports carry for models that transformers has no class for
weights/       weights in checkpoints and in folders of transformers, by our names of parameters
adapters/      LoRA adapters in peft's format
"""
