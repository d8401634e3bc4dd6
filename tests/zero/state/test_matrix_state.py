"""Assigning matrices to the ranks that update them."""

from megatape.registry import OPTIMIZERS
from megatape.zero.state.matrix_state import assign_owners

ENTRY = OPTIMIZERS["muon"]
SQUARES = {f"square{number}": (64, 64) for number in range(4)}
THIN = {f"thin{number}": (2, 2048) for number in range(4)}
SHAPES = SQUARES | THIN


def test_each_rank_owns_one_matrix_of_each_kind() -> None:
    """A wide matrix costs more than its elements say."""
    owners = assign_owners(SHAPES, ENTRY, 4)
    assert sorted(owners[name] for name in SQUARES) == [0, 1, 2, 3]
    assert sorted(owners[name] for name in THIN) == [0, 1, 2, 3]


def test_order_of_the_matrices_does_not_matter() -> None:
    backwards = dict(reversed(SHAPES.items()))
    assert assign_owners(backwards, ENTRY, 4) == assign_owners(SHAPES, ENTRY, 4)


def test_owners_are_balanced_by_flops() -> None:
    loads = [0, 0, 0]
    for name, owner in assign_owners(SHAPES, ENTRY, 3).items():
        loads[owner] += ENTRY.update_flops(SHAPES[name])
    assert max(loads) <= 2 * ENTRY.update_flops((64, 64))
