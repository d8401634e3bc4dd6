"""From shards to training batches.

Samples: dataset.py (base class), token_dataset.py, packed_dataset.py and its subclasses cut a split into samples;
open_dataset.py chooses among them. best_fit.py packs documents, arrangement.py and stored_arrangement.py keep the result.
Order: order.py permutes the samples of a corpus; schedule.py, mixture_weights.py and mixture_order.py interleave corpora.
Batches: loader.py makes those for training, evaluation_reader.py those for evaluation, both with batch.py and positions.py.
run_data.py opens everything that a run needs.
"""
