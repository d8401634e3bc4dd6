"""Ranks and their communication: launchers, rendezvous, mesh, collectives with gradients, layouts, exchanged values.

Where to look, in the order of a run's start:

* topology.py: this process's ranks. launchers.py reads them from the launcher's variables, with environment.py for integers,
  and slurm.py or mpi.py where ranks meet. launcher_logs.py keeps DeepSpeed's launcher quiet.
* network.py: addresses and network interfaces through which ranks reach each other.
* store.py: the key-value store in which ranks meet; messages.py: signed messages in it.
* mesh.py: axes of ranks, with their process groups.
* collectives.py: blocking collectives with gradients; asynchronous.py: those that overlap with computation.
* layout.py: which part of a tensor each rank holds; traffic.py: bytes that ranks send.
* exchange.py: Python values of all ranks; serialization.py: their JSON encoding.
* rank_differences.py: what differs between ranks, for messages.
"""
