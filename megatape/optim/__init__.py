"""Optimizers and their options, base class for updating whole matrices, and learning-rate schedules.

Where to look:

* optimizer.py: builds the configured optimizer from parameters.
* adamw.py: AdamW.
* matrices.py: base class for updating whole matrices; muon_options.py and muon.py: Muon, such an optimizer.
* learning_rate.py: learning rate of each step. schedules.py: the decays; legacy_schedules.py: those of earlier versions, for
  resuming.
"""
