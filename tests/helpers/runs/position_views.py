"""Position views with known content."""

import numpy as np

from megatape.training.position_views.view import PositionView


def some_view(num_layers: int = 3, num_tokens: int = 5, num_heads: int = 4, scale: float = 1.0) -> PositionView:
    """Return rotary products for some frequencies, growing with the layers."""
    distances = np.arange(num_tokens)[:, None] - np.arange(num_tokens)
    rotary = np.mean([np.cos(distances * theta) for theta in (1, 0.1, 0.01)], axis=0)
    layers = 1 + scale * np.arange(num_layers)
    return PositionView(
        tokens=[f"<{token}>" for token in range(num_tokens)],
        places=np.arange(num_tokens, dtype=np.int32),
        products=(layers[:, None, None] * rotary).astype(np.float16),
        norms=np.sqrt(layers).astype(np.float32),
        gains=np.linspace(-scale, scale, (num_layers - 1) * num_heads, dtype=np.float32).reshape(num_layers - 1, num_heads),
    )
