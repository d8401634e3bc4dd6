"""megatape benchmark: speed, memory and start-up, on a CPU or a GPU (docs/benchmarks.md)."""
