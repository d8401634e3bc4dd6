"""Datasets: a split, cut into samples. `data.samples` chooses one (open_dataset.py).

dataset.py           base class
token_dataset.py     `packed`: the stream of tokens, cut anywhere
packed_dataset.py    base class of those below, whose samples consist of whole documents
best_fit_dataset.py  `best_fit`: as many documents as fit
document_dataset.py  `documents`: one document per sample
example_dataset.py   `examples`: prompts with answers
"""
