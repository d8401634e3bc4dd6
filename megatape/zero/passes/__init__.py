"""Forward and backward passes of a step, before its update.

* pass_result.py: sums over the gradients, and times measured by stopwatch.py.
* nonfinite.py: names the rank whose gradient has a NaN, before partial_gradients.py sums gradients over tensor-parallel ranks.
* recorded_passes.py: forward and backward pass recorded as CUDA graphs. replays.py records and replays them.
* computation_check.py: finds a rank that computes other numbers from the same samples than the other replicas.
* evaluation_losses.py: losses of an evaluation.
"""
