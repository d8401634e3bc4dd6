"""Watching the ranks of a run: heartbeats, diagnosis, verdict, and ending all processes.

* watch.py has the context manager around a run, and one that does nothing, for a single rank. heartbeat_sender.py sends this
  rank's phase (pace.py) as a heartbeat (heartbeat.py), and store_guard.py notices if sending is stuck.
* peer_monitor.py reads the messages (messages.py) of the peers (peer.py). diagnosis.py finds the rank at fault, and
  stragglers.py slow ones. timeouts.py has all times.
* A verdict (verdict.py) ends all ranks: by raising an error (rank_errors.py), or if the main thread is stuck, by ending the
  process (process_end.py) after writing its stacks (stacks.py).
"""
