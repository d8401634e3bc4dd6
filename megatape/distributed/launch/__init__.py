"""A rank's start: its launcher, its ranks, the network between hosts, and the store in which ranks meet.

Where to look:

* launchers.py: `set_up_ranks` reads the launcher's variables, and sets those that torch and DeepSpeed read. environment.py
  reads integers.
* slurm.py and mpi.py: where ranks started by srun and mpirun meet.
* network.py: checks that address, and chooses the network interface.
* store.py: the key-value store there.
* launcher_logs.py: keeps DeepSpeed's launcher quiet.
"""
