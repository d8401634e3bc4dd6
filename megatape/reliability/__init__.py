"""Detecting dead, hanging and slow ranks; leases of folders, signals, and the log of a run.

How the parts work together in a run (training/pretrain.py):

* commands/pretrain.py starts a thread that stops this rank when its launcher has ended (orphan.py).
* All work happens inside a `Watch` (watch/watch.py). The trainer tells `watch.pace` its present phase. A thread of each rank
  sends phase and number of collectives as a heartbeat to the store of the ranks. Rank 0 judges the heartbeats of all ranks; the
  others judge those of rank 0 (watch/peer_monitor.py, watch/diagnosis.py).
* A rank that finds a fault, or fails itself, publishes the verdict. Every rank then raises RankFailed, or its thread ends the
  process, with the message of the verdict.
* The ranks check that they see the same folder (shared_folder.py), and the main rank holds its lease (lease/lease.py), which
  RunLog (run_log.py) and CheckpointManager check before each write.
* A signal ends training after the present step (signals.py).
"""
