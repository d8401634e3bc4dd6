"""Model code that exports carry. transformers runs it without MegaTAPE.

modeling_tape.py        the models, and a decoder layer of attention (attention_layer.py), norm and MLP (layers.py)
configuration_tape.py   their configuration
attention.py            attention functions whose values are wider than keys; windows.py: those of layers with a window
cache.py                access to caches of transformers; cache_layers.py, cache_buffer.py: layers with spare capacity
new_tokens.py           positions, documents and mask of the tokens in a forward pass; positions.py: positions drawn at random
encodings.py            the encodings of the package; an export carries one with the model's own
stand_ins.py            what the encodings' files import from the parallel library
"""
