"""Tests needing a GPU. `megatape benchmark gpu` runs them as well, so they import no packages beyond its own."""

import pytest
import torch

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
