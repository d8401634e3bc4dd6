"""Checkpoints: manager, manifest, tensors, reader, writer, and the rules for resuming.

manager.py has the verbs of a run: save, load, roll back. Below it are three folders, and `save` and `load` don't import each
other:

    manager.py ── save/      writes a checkpoint, in the background if so configured, and removes old ones
        │         load/      reads a checkpoint, and selects the one to resume from
        └──────── format/    files of a checkpoint: what they contain, and how their content is checked

interfaces.py and initial_weights.py say what checkpoints need from training, besides megatape/run_environment.py.

Reading order: format/manifest.py, whose docstring shows a checkpoint folder, load/reader.py, save/writer.py, manager.py.
"""
