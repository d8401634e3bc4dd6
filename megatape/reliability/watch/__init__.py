"""Watch over all ranks of a run: heartbeats, diagnosis, verdict, and the end of all processes.

* watch.py is the context manager around a run. heartbeat_sender.py sends the phase of this rank (pace.py) as a heartbeat
  (heartbeat.py), and store_guard.py notices that it cannot be sent.
* peer_monitor.py reads the messages (messages.py) of the other ranks (peer.py). diagnosis.py finds the rank at fault, and
  stragglers.py the slow ones.
* A verdict (verdict.py) ends all ranks: by an error (rank_errors.py), or if their main thread is stuck by process_end.py,
  after writing their stacks (stacks.py).
"""
