"""Benchmarks: speed and memory of models, data and training.

These are the commands `megatape benchmark NAME`:

    name          file               measures                                       compared with
    duplicates    data/              finding duplicates among hashes
    efficiency    efficiency.py      parameters, FLOPs, memory, time of encodings   RoPE, and the paper
    gpu           gpu/               kernels, training steps, serving               RoPE, targets, Llama
    loader        data/              reading training samples                       copying, webdataset, mapped files
    memory        ranks/             host memory per rank while training            planner
    preparation   data/              preparing a corpus                             tokenizer alone, loop with gigatoken
    roofline      roofline/          nothing: it estimates training steps           RoPE, targets
    saves         ranks/             time of saving and restoring                   copying the state in memory
    serving       serving.py         exported models, reading prompts, decoding     transformers' Llama

Figures are typed records, which `report` turns into paragraphs. figures/timing.py runs an action and its baseline in the same
rounds: a ratio is the median over rounds, so it does not depend on the machine's load. In loader, the fastest round counts.
models/ has the measured models.
"""
