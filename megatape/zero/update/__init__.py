"""Update of the weights: a decision, then the optimizer's step.

In the order of the calls: DeepSpeed calls gated_optimizer.py, which asks gate.py. The gate decides once per step (decision.py
has the possible decisions), and calls weight_step.py. For optimizers such as Muon, whole_matrices.py gathers gradients on the
rank that owns a matrix, and distributes its update. matrix_pieces.py knows which rank has which piece.
"""
