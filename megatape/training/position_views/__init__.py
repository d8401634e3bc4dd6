"""Position views: summaries of one text's position tensors, computed (viewer.py) at each evaluation and stored (view.py)."""
