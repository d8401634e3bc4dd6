"""Reliability: detecting dead, hanging and slow ranks; the run directory's lease, stop signals, and the run log.

watch/            dead, hanging and slow ranks
lease/            the reservation of the run directory
shared_folder.py  checks that all ranks share the run directory
orphan.py         ranks without a launcher
signals.py        stop signals
standby.py        processes that wait for the place of a dead rank
run_log.py        messages and events.jsonl
goodput/          where the time of a run went

Vocabulary:

* Watch: the threads of a rank that watch the other ranks (watch/watch.py).
* Phase: a rank's present activity, such as "step 7", with a timeout derived from earlier durations. A rank's pace
  (watch/pace.py) knows its phase.
* Heartbeat: a sign of life. In the watch, a message with a rank's phase and number of collectives. For a lease, the file's time
  of change.
* Peer: a rank that this rank watches. Rank 0 watches all ranks, the others watch rank 0.
* Diagnosis and verdict: the finding that a peer is dead, hanging or slow, and the decision to end all ranks, naming that rank.
* Straggler: a rank that slows down the others at every step. It causes a warning.
* Lease: a file that reserves the run directory for one run. Its holder is the process named in it: a run's main rank. A run
  takes over the lease of a dead holder (lease/).
* Orphan: a rank whose launcher has ended. It stops (orphan.py).

In a run (training/pretrain.py):

* commands/pretrain.py starts the thread that stops orphans.
* All work happens inside a `Watch`, or a `NoWatch` if there is a single rank. The trainer enters phases in `watch.pace`, and
  the watch sends heartbeats to the ranks' store. If a rank fails, or a diagnosis finds one that is dead or hangs, a verdict is
  published. Every rank then raises RankFailed, or its watch ends the process.
* The ranks check that they share the run directory (shared_folder.py), and the main rank holds its lease. RunLog (run_log.py)
  and CheckpointManager check the lease before writing.
* A signal ends training after the current step (signals.py).
"""
