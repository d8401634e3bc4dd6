"""Work among processes that share a folder: work_queue.py chooses the next unit or part, task.py a machine's share of them."""
