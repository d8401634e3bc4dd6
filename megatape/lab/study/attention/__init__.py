"""Attention of trained models: stability under shifts, and pictures of patterns.

examined_model.py  loads the models to examine, each with its text
layer_inputs.py    runs a model, and recomputes the attention of each layer from its inputs
shift.py           `megatape study shift`
patterns.py        `megatape study attention`
"""
