"""Running the Triton kernels on a CPU, by Triton's interpreter.

This is a process of its own, because the interpreter must be chosen before kernels are imported:

    TRITON_INTERPRET=1 python -m tests.kernels.interpreted

prints a JSON object with the fields of `Report`.
"""

import json
from typing import NamedTuple
from unittest.mock import patch

import torch

from megatape.attention import rotating_backend
from megatape.encodings.tape import TapeUpdate
from megatape.nn.kernels import devices
from tests.kernels.interpreted.attention_cases import ATTENTION, attention_differences
from tests.kernels.interpreted.comparison import Comparison
from tests.kernels.interpreted.compiled_calls import compiled_differences
from tests.kernels.interpreted.loss_cases import LOSSES, loss_differences
from tests.kernels.interpreted.memory_access import Reach, Traffic, large_launches, reaches, traffic
from tests.kernels.interpreted.rotation_cases import ROTATIONS, joined_rotation_differences, rotation_differences
from tests.kernels.interpreted.triton_interpreter import mend_bfloat16, quicken
from tests.kernels.interpreted.update_cases import UPDATES, update_differences
from tests.kernels.launches import update_launches


class Report(NamedTuple):
    """Printed results.

    Attributes:
        kernels: Comparisons of attention, rotations and updates.
        losses: Comparisons of the loss.
        reaches: Parts of large tensors touched by each kernel's last program.
        traffic: Traffic caused by the update's kernels.
        compiled: Differences between calls in a graph of torch.compile and plain ones.
    """

    kernels: list[Comparison]
    losses: list[Comparison]
    reaches: list[Reach]
    traffic: list[Traffic]
    compiled: list[Comparison]


def compare_kernels() -> list[Comparison]:
    """Compare attention, rotations and updates with their formulas."""
    comparisons = [Comparison(case.dtype == torch.float32, attention_differences(case)) for case in ATTENTION]
    comparisons += [Comparison(case.dtype == torch.float32, rotation_differences(case)) for case in ROTATIONS]
    with patch.object(rotating_backend, "has_kernels", lambda device: True):
        comparisons += [Comparison(case.dtype == torch.float32, joined_rotation_differences(case)) for case in ROTATIONS]
    comparisons += [Comparison(case.dtype == torch.float32, update_differences(case)) for case in UPDATES]
    return comparisons


def find_reaches() -> list[Reach]:
    """Return what the last programs touch in large launches."""
    found: list[Reach] = []
    for launch in large_launches():
        found += reaches(launch)
    return found


def measure_traffic() -> list[Traffic]:
    """Return the traffic for updating a 155M model's position state, with one token in the last tile."""
    measured: list[Traffic] = []
    for launch in update_launches((1, 121, 12, 12, 64), 48, torch.bfloat16, processors=2):
        measured += traffic(launch)
    return measured


def main() -> None:
    mend_bfloat16()
    quicken()
    with (
        patch.object(devices, "num_multiprocessors", lambda device: 1),
        # Select the kernel on a CPU as well.
        patch.object(TapeUpdate, "has_kernel", lambda layer, device: True),
    ):
        kernels = compare_kernels()
        compiled = [Comparison(True, differences) for differences in compiled_differences()]
    losses = [Comparison(case.dtype == torch.float32, loss_differences(case)) for case in LOSSES]
    report = Report(kernels, losses, find_reaches(), measure_traffic(), compiled)
    print(json.dumps(report._asdict()))


if __name__ == "__main__":
    main()
