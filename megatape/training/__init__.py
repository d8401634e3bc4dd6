"""Training: the process, the trainer and its state, beside folders for the start, steps, validation and reports."""
