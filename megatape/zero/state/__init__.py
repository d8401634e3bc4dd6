"""Master weights and optimizer state of a run, by parameter name, the same at every stage and number of ranks.

A rank has a part of each tensor, and each level of sharding has its word:

    tensor      a parameter, or its optimizer state, before sharding
    shard       rows or columns of the tensor that tensor parallelism gives this rank (nn/parameters.py)
    fragment    run of elements in the shard that ZeRO gives this rank, and where it lies in a flat tensor that the optimizer
                updates (zero/stages/)
    piece       all of this in one object: shape of the tensor, shard, and values of the run

* interfaces.py: what checkpoints need. kinds.py: names of the kinds of tensors.
* zero_state.py: the state of an engine. It has three parts: flat_state.py (tensors that the optimizer updates element by
  element), matrix_state.py (tensors of whole matrices) and moving_average.py.
* piece.py: this rank's part of a tensor, converted to and from blocks of rows and columns.
* snapshot.py copies the state for saves in the background. replica_check.py compares it between ranks, and memory_check.py with
  itself before and after a step's passes. Both use checksums.py.
"""
