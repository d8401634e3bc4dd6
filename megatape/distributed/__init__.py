"""Ranks and their communication: launchers, rendezvous, mesh, collectives with gradients, layouts, exchanged values."""
