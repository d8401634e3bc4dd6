"""Files and folders, whose names and contents may come from anybody.

files.py            files with untrusted names and contents
paths.py            file names
json_files.py       JSON files
json_lines.py       files with one JSON object per line, which grow
atomic.py           outputs that are complete or absent
locks.py            file locks
retries.py          faults of shared file systems
full_disk.py        full disks
private_folder.py   folder in /tmp for caches of code
project_files.py    files of a clone or an installed wheel
"""
