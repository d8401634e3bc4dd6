"""The start of a run: checks of ranks, memory and kernels, building its parts, and the state that it starts from."""
