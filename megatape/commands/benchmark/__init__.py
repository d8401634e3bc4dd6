"""megatape benchmark: speed and memory, on a CPU or a GPU (docs/benchmarks.md)."""
