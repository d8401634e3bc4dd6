"""Benchmark of a GPU: `megatape benchmark gpu` runs the parts, each in worker processes.

A part measures cases, such as a training step with one encoding and backend, and turns its results into a table:

    part        measures                                                    compared with
    machine     device and software versions
    ceilings    bandwidth of a copy, throughput of matrix products
    attention   each attention backend, forward and backward                fastest RoPE attention
    steps       training steps of RoPE and TAPE                             fastest RoPE step, targets
    update      rotation and position update of a layer                     copy of as many bytes
    profile     kernels and idle time of a step
    pretrain    steps of `megatape pretrain`                                bare step (raw_step.py)
    tests       tests marked gpu
    fp8         training steps in FP8                                       bfloat16
    serving     exported TAPE with static caches                            transformers' Llama
    tiles       other tiles for the attention kernels                       tiles in use

parts.py lists the parts. runner.py starts worker.py for each of them, and bench.py sends the results back, which results.py
keeps in results.jsonl. report.py joins the tables of the parts in table.md.
"""
