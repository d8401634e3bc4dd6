"""This process, its children and other processes.

python_process.py   Python child processes
process_table.py    start and state of a process, and the machine's boot
waiting.py          waiting for other processes
"""
