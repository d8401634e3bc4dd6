"""Benchmark of a GPU, `megatape benchmark gpu`, in parts that run in worker processes.

A part measures cases, such as a training step with one encoding and backend, and turns its results into a table:

    part        measures                                             compared with
    machine     device and software versions
    ceilings    bandwidth of a copy, throughput of matrix products
    attention   attention backends, forward and backward             fastest RoPE attention
    steps       training steps of RoPE and TAPE                      fastest RoPE step, targets
    update      rotation and position update                         copying as many bytes
    profile     kernels and busy time of a step
    pretrain    steps of `megatape pretrain`                         bare step (raw_step.py)
    tests       tests marked gpu
    fp8         training steps in FP8                                bfloat16
    serving     exported TAPE with static caches                     transformers' Llama
    tiles       other tiles for the attention kernels                tiles in use

parts.py lists the parts. runner.py starts worker.py for each of them, bench.py sends results back, results.py keeps them in
results.jsonl, and report.py joins the tables in table.md.
"""
