"""Ranks and their communication: launchers, topology, mesh, collectives with gradients, layouts, exchanged values."""
