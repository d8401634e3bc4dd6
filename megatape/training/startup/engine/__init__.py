"""The engine of a run: model and optimizer under DeepSpeed. Start with build_engine.py.

build_engine.py          builds the engine
working_kernels.py       tests attention backends and kernels, and selects those that work on all ranks
split_sequence_check.py  checks that a user's encoding supports sequences split across ranks
graph_recording.py       decides whether to record passes as CUDA graphs
"""
