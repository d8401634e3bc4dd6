"""ZeRO stages: where each one keeps weights, gradients and optimizer state, and what it does with them in a step.

These files use private names of DeepSpeed, read from version 0.19.8. Its public accessors (`deepspeed.utils.safe_get_...`)
return copies of whole tensors, one parameter at a time. Checkpoints and initial weights need this rank's part of each tensor,
in place.
"""
