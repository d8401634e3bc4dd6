"""Sections of the configuration, and the limits that they declare (config/limits.py).

* model.py, with lora.py, scaling.py, the limits of layer_limits.py and encoding_limits.py, and the families of families.py;
* data.py;
* training.py, with the batch sizes of batches.py; optimizer.py, the optimizer and its schedule;
* distribution.py, the ranks and machines, with distribution_limits.py;
* run.py, the sections around training.
"""
