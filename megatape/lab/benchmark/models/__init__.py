"""Models that benchmarks measure.

shapes.py           shapes of models and micro-batches, and random weights like trained ones
measured_model.py   a model with its inputs; measured_parts.py has its timed parts
compared_models.py  models that share weights
exported.py         exported models; sessions.py has their prompts and caches
"""
