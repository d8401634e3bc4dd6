"""The FP8 product of a run, which all ranks have, or none."""

import logging

import torch

from megatape.config import Config
from megatape.parallel.fp8 import fp8_product
from megatape.parallel.linear import Product
from megatape.runtime.exchange import on_all
from megatape.runtime.topology import Topology

LOG = logging.getLogger(__name__)


def working_product(config: Config, device: torch.device, topology: Topology) -> Product | None:
    """What multiplies in FP8, or None where training.fp8 is none. Collective.

    Raises UserError on all ranks if one cannot: torchao is missing there, or its device does not multiply in FP8.
    """
    recipe = config.training.fp8
    if recipe == "none":
        return None
    products: list[Product] = []
    on_all(lambda: products.append(fp8_product(recipe, device)), topology, context=f"training.fp8 {recipe} does not work: ")
    if topology.is_main and device.type == "cpu":
        LOG.info("training.fp8 %s is emulated on a CPU: it rounds as on a GPU, and is slower than bfloat16", recipe)
    return products[0]
