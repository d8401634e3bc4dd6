"""The transformer: equations of blocks and attention, and build.py, which adds parallelism and memory savings.

Where to look, starting with the equations:

* transformer.py: the language model; block.py: one block, of attention.py and mlp.py.
* build.py: builds a model, and adds the following to it.
    * options.py: options beside the equations.
    * attention_functions.py: functions computing attention; requirements.py: what attention layers need from backends.
    * layers.py: linear layers of blocks; lora.py: names of their adapters; trainable.py: which weights are trained.
    * layout.py: the ranks that a model is distributed over.
    * wrappers/: blocks, attention and MLP for several ranks, for saving memory, and for torch.compile.
    * init.py: initial weights; seeds.py: seeds of random numbers by name.
* smoke_test.py, with smoke_test_child.py: tries backends and kernels before a run uses them.
* lora_limits.py, compile_limits.py and length_limits.py: excluded settings.
* recorded_streams.py: residual streams, recorded for position views.
"""
