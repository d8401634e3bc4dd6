"""Splitting a checkpoint into files. tests/end_to_end writes whole checkpoints from several ranks."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from megatape.checkpoint.save.file_plan import TensorFile, plan_files

SHAPES: dict[str, tuple[int, ...]] = {"a": (4,), "b": (2, 3), "c": (1,), "huge": (5, 5), "d": (2,)}


def plan(weights: Iterable[str], momentum: Iterable[str]) -> list[TensorFile]:
    """Plan files of at most 10 float32 numbers, for parameters with these weights and momentums."""
    names_by_kind = {"weight": weights, "momentum": momentum}
    tensors: Any = SimpleNamespace(parameters=SHAPES, shape=SHAPES.__getitem__, names_by_kind=names_by_kind)
    return plan_files(tensors, (), file_bytes=4 * 10)


def test_parameters_are_grouped_into_files() -> None:
    """Parameters keep their order. A larger tensor has its own file, and every kind has the same groups."""
    assert plan(weights=SHAPES, momentum=SHAPES) == [
        TensorFile("weight", "weight-00000.safetensors", ["a", "b"]),
        TensorFile("momentum", "momentum-00000.safetensors", ["a", "b"]),
        TensorFile("weight", "weight-00001.safetensors", ["c"]),
        TensorFile("momentum", "momentum-00001.safetensors", ["c"]),
        TensorFile("weight", "weight-00002.safetensors", ["huge"]),
        TensorFile("momentum", "momentum-00002.safetensors", ["huge"]),
        TensorFile("weight", "weight-00003.safetensors", ["d"]),
        TensorFile("momentum", "momentum-00003.safetensors", ["d"]),
    ]


def test_frozen_parameters_leave_the_other_files_as_they_are() -> None:
    """Frozen parameters have no momentum. The momentums of other parameters keep their file numbers."""
    files = plan(weights=SHAPES, momentum=["c", "d"])
    assert [file for file in files if file.kind == "momentum"] == [
        TensorFile("momentum", "momentum-00001.safetensors", ["c"]),
        TensorFile("momentum", "momentum-00003.safetensors", ["d"]),
    ]
