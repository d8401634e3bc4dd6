"""Division of a checkpoint into files. tests/end_to_end writes whole checkpoints from several ranks."""

from types import SimpleNamespace
from typing import Any

from megatape.checkpoint.file_plan import TensorFile, plan_files


def test_parameters_are_grouped_into_files() -> None:
    """Parameters keep their order. A larger tensor has a file of its own, and every kind has the same groups."""
    shapes: dict[str, tuple[int, ...]] = {"a": (4,), "b": (2, 3), "c": (1,), "huge": (5, 5), "d": (2,)}
    kinds = ("weight", "momentum")
    tensors: Any = SimpleNamespace(parameters=shapes, shape=shapes.__getitem__, names_by_kind=dict.fromkeys(kinds, shapes))

    def plan() -> list[TensorFile]:
        return plan_files(tensors, (), file_bytes=4 * 10)

    groups = [["a", "b"], ["c"], ["huge"], ["d"]]
    expected = []
    for number, names in enumerate(groups):
        for kind in kinds:
            expected.append(TensorFile(kind, f"{kind}-{number:05d}.safetensors", names))
    assert plan() == expected

    # The other parameters are frozen.
    tensors.names_by_kind["momentum"] = ["c", "d"]
    momentum = [file for file in plan() if file.kind == "momentum"]
    assert momentum == [
        TensorFile("momentum", "momentum-00001.safetensors", ["c"]),
        TensorFile("momentum", "momentum-00003.safetensors", ["d"]),
    ]
