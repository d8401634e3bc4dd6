"""The transformer: equations of blocks and attention, and build.py, which adds parallelism and memory savings.

Where to look, starting with the equations:

* transformer.py: the language model; block.py: one block with attention and MLP.
* block_in_steps.py: the same block with a method per step, for wrappers that change single steps.
* build.py: builds a model, and adds the following to it.
    * options.py: options beside the equations; requirements.py: what attention layers need from backends.
    * layers.py: linear layers of blocks; lora.py: names of their adapters; trainable.py: which weights are trained.
    * tensor_parallel.py and sequence_parallel.py: parallel attention, MLP and blocks; layout.py: their layout over ranks.
    * memory.py: blocks using less memory; compilation.py: compiled blocks.
    * init.py: initial weights.
* smoke_test.py, with smoke_test_child.py: tries backends and kernels before a run uses them.
* lora_limits.py, compile_limits.py and length_limits.py: excluded settings.
* recorded_streams.py: residual streams, recorded for position views.
"""
