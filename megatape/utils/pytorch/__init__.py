"""Parts of torch that need care.

torch_internals.py  torch's private names
operators.py        functions that torch.compile keeps as one operator
recorder.py         work recorded as CUDA graphs
"""
