"""Speed, memory and start-up times, on a CPU or a GPU: a file per part."""
