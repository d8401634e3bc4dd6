"""The watch over ranks: heartbeats, the diagnosis of dead and hanging ranks, and the end of all ranks."""
