"""Stand-in for the parts of vLLM that examples/vllm uses, for a machine on which vLLM cannot run: it needs a GPU.

Layers have the parameters and results of vLLM's, and compute in plain PyTorch. Tensor-parallel ranks are threads.

    ranks.py      ranks, and the batch that each of them runs
    layers.py     layers of a model
    attention.py  attention, with a cache for each request
    modules.py    modules of vLLM, with what the plugin imports from them
    engine.py     runs batches as vLLM does
    compare.py    compares the stand-in with a wheel of vLLM (`make vllm`)
"""
