"""Tests that need a GPU. `megatape benchmark gpu` runs them, too; this folder needs no more packages than they import."""

import pytest
import torch

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
