"""Reports of a run: its start, metrics of steps, speed, and the memory of the device."""
