"""Benchmark for GPUs, `megatape benchmark gpu`, in parts that run in worker processes.

A part measures cases, such as a training step with one encoding and backend, and makes a table:

    part        measures                                     compared with
    machine     device and software versions
    ceilings    copy bandwidth, matrix product throughput
    attention   attention backends, forward and backward     fastest RoPE attention
    steps       RoPE and TAPE training steps                 fastest RoPE step, targets
    update      rotation and position update                 copying as many bytes
    profile     a step's kernels and busy time
    pretrain    `megatape pretrain`                          bare step (parts/raw_step.py)
    tests       tests marked gpu
    fp8         FP8 training steps                           bfloat16
    serving     exported TAPE with static caches             transformers' Llama
    tiles       other tiles for the attention kernels        tiles in use

registry.py lists the parts, which are in parts/. runner.py starts worker.py for each part, bench.py sends results back,
results.py keeps them in results.jsonl, and report.py joins the tables (tables.py) in table.md.
"""
