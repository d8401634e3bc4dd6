"""Running the training runs of a study: pool, children, locks, outcomes and metrics."""
