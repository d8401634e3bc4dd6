"""Ranks and their communication: launchers, rendezvous, mesh, collectives with gradients, layouts, exchanged values.

Where to look, in the order of a run's start:

* topology.py: the ranks of this process.
* launch/: reads them from the launcher's variables, and finds where ranks meet.
* mesh.py: axes of ranks, with their process groups.
* collectives.py: blocking collectives with gradients; asynchronous.py: those that overlap with computation.
* layout.py: which part of a tensor each rank holds, and exchanges between layouts.
* traffic.py: counts the bytes that ranks send.
* values/: Python values that ranks exchange.
"""
