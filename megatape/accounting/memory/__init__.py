"""Memory of one rank at the peak of a training step.

rank_memory.py        adds up the parts (memory_parts.py)
state_memory.py       weights, gradients, optimizer state and their copies
activation_memory.py  activations and temporary tensors
saved_activations.py  activations that autograd saves, counted by running a model (saved_tensors.py)
fitting_change.py     the smallest change to a run that makes it fit
"""
