"""Training batches, read from shards.

run_data.py   everything that a run reads
datasets/     a split, cut into samples
packing/      documents packed into samples, and files with the result
mixing/       the order of a corpus's samples, and of the corpora in a mixture
batches/      batches for training and evaluation
selection.py  which validation samples to evaluate on
inputs.py     the inputs that validation samples come from

datasets/ imports packing/, mixing/ imports datasets/, and batches/ imports both.
"""
