"""Position views: summary tensors of one fixed text, computed at each evaluation."""
