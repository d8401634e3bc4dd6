"""From shards to batches: order of samples, datasets, mixtures and loaders."""
