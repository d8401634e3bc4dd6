"""The order of samples, a function of how many have been consumed.

order.py            permutes the samples of one corpus
schedule.py         interleaves corpora by integer weights (mixture_weights.py)
mixture_order.py    combines both
mixture.py          the training data of a run, in this order
epoch_limits.py     limits on the epochs of each corpus
corpus_names.py     names of corpora in reports
"""
