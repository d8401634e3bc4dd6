"""Worker processes of a command: worker.py has what one does, worker_pool.py starts and watches them."""
