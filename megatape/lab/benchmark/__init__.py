"""Benchmarks: speed and memory of models, data and training.

These are the commands `megatape benchmark NAME`:

    file            measures                                                compared with
    efficiency      parameters, FLOPs, memory and time of the encodings     RoPE, and the paper
    gpu/            kernels, training steps and serving on a GPU            see gpu/__init__.py
    loader          reading training samples                                our default reader, copying, webdataset
    memory          host memory per rank while training                     planner
    preparation     preparing a corpus                                      tokenizer alone, loop with gigatoken
    roofline        nothing: estimates training steps (estimates.py)        fastest RoPE, and the targets (targets.py)
    serving         exported models, reading prompts and decoding           transformers' Llama

`measure` returns typed results, and `report` turns them into paragraphs and tables. timing.py runs an action and its baseline
in the same rounds: a ratio is the median over rounds of one over the other, so it does not depend on the load of the machine.
In loader, the fastest round of each reader counts instead.

The other files build what is measured: models.py the shapes, measured_model.py models with shared weights, exported.py
exported models, sessions.py their prompts and caches. peak_memory.py and utilization.py compute figures, and cells.py formats
them.
"""
