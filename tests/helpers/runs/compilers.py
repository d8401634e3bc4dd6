"""Runs that compile blocks without Inductor, which takes a minute to make C++."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from megatape.config import ModelConfig
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.options import Kernels, TrainingOptions
from megatape.model.transformer import Transformer
from megatape.training.startup.engine import build_engine


@contextmanager
def without_inductor() -> Iterator[None]:
    """Compile the blocks of runs inside the `with` block without the last stage, code generation."""

    def build(config: ModelConfig, layout: Layout, kernels: Kernels, training: TrainingOptions) -> Transformer:
        if kernels.compiler is not None:
            kernels = replace(kernels, compiler="aot_eager_decomp_partition")
        return build_model(config, layout, kernels, training)

    with patch.object(build_engine, "build_model", build):
        yield
