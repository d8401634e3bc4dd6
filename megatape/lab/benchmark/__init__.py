"""Benchmarks: speed and memory of models, data and training.

These are the commands `megatape benchmark NAME`:

    file          measures                                              compared with
    efficiency    parameters, FLOPs, memory and time of encodings       RoPE, and the paper
    gpu/          kernels, training steps, serving (gpu/__init__.py)    RoPE, targets, Llama
    loader        reading training samples                              our default reader, copying, webdataset
    memory        host memory per rank while training                   planner
    preparation   preparing a corpus                                    tokenizer alone, loop with gigatoken
    roofline      nothing: it estimates training steps (estimates.py)   RoPE, targets (targets.py)
    serving       exported models, reading prompts and decoding         transformers' Llama

Figures are typed records, which `report` turns into paragraphs. timing.py runs an action and its baseline in the same rounds: a
ratio is the median over rounds, so it does not depend on the machine's load. In loader, the fastest round counts.

The measured objects: shapes (models.py), models with shared weights (measured_model.py), exported models (exported.py) with
their prompts and caches (sessions.py). peak_memory.py and utilization.py compute figures, and cells.py formats them.
"""
