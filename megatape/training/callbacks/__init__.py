"""Callbacks follow a run: callback.py is their interface, and the other files are built-in ones.

metrics.py passes metrics to the sinks, position_views.py writes position views, profile.py traces steps, and exports.py exports
checkpoints. collection.py calls all callbacks of a run.
"""
