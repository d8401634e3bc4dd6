"""Layers: linear (tensor-parallel, LoRA, FP8), vocabulary, norms, dropout and loss; parameters and rematerialization.

Where to look, from single tensors to whole layers:

* parameters.py: parameters that declare their initialization and weight decay, and this rank's shards of them.
* gathered_unit.py: modules that ZeRO stage 3 gathers as a whole.
* forward_context.py: state of the running forward pass that reaches layers without arguments.
* remat/: tensors that the backward pass rebuilds, their gathering across ranks, and activation checkpointing.
* linear_function.py: the function of linear layers; fp8.py: the same in FP8; fp8_limits.py: settings that FP8 excludes.
* linear.py: tensor-parallel linear layers; lora.py: their adapters; dropout.py: dropout in adapters.
* norm.py: normalization layers.
* vocabulary.py: embedding and output head; logits.py: soft-cap and padding of logits; targets.py: targets of the loss;
  loss.py: cross entropy by chunks.
* kernels/: the loss as a Triton kernel, and launching any Triton kernel.
"""
