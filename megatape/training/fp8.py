"""The FP8 product of a run, which all ranks have, or none."""

import torch

from megatape.config import Config
from megatape.errors import UserError
from megatape.parallel.fp8 import Product, fp8_product
from megatape.runtime.exchange import exchange
from megatape.runtime.topology import Topology, name_ranks


def working_product(config: Config, device: torch.device, topology: Topology) -> Product | None:
    """What multiplies in FP8, or None where training.fp8 is none. Collective.

    Raises UserError on all ranks if one cannot: torchao is missing there, or its device does not multiply in FP8."""
    recipe = config.training.fp8
    if recipe == "none":
        return None
    product, fault = None, ""
    try:
        product = fp8_product(recipe, device)
    except ValueError as error:
        fault = str(error)
    faults = exchange(fault, topology)
    if ranks := [rank for rank, told in enumerate(faults) if told]:
        raise UserError(f"training.fp8 {recipe} does not work on {name_ranks(ranks)}: {faults[ranks[0]]}")
    if topology.is_main and device.type == "cpu":
        print(f"training.fp8 {recipe} is emulated on a CPU: it rounds as on a GPU, and is slower than bfloat16", flush=True)
    return product
