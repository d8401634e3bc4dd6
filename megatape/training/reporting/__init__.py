"""Reports about steps: metrics, speed, and the memory of the device."""
