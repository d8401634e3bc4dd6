"""Training: trainer, spike policy, evaluation, initial state, callbacks and sinks."""
