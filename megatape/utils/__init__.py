"""Helpers that know nothing about training: files, text, typed options, child processes, torch's private names.

Files and folders:
    files.py, paths.py       files with untrusted names and contents, file names
    json_files.py            JSON files
    json_lines.py            files with one JSON object per line, which grow
    atomic.py                outputs that are complete or absent
    locks.py                 file locks
    retries.py, full_disk.py faults of shared file systems and full disks
    private_folder.py        folder in /tmp for compiled code
    project_files.py         files of a clone or an installed wheel

Values and their description:
    options.py               typed options of commands and evaluation tasks
    documented_model.py      models whose docstrings describe their fields
    validation.py            JSON values converted to types
    rounding.py              integer division that rounds up
    lazy_sequence.py         sequences that read an item when it is used

Text for people:
    units.py, tables.py      numbers and times, tables
    paragraphs.py            long output, shown as soon as it is known
    terminal.py              the log on the terminal
    url_secrets.py           passwords in URLs, hidden

Processes and libraries:
    python_process.py        Python child processes
    process_table.py         start and state of a process, and the machine's boot
    waiting.py               waiting for other processes
    software.py              versions of this process's software
    replaced_attribute.py    temporary replacements for attributes
    recorder.py              work recorded as CUDA graphs
    operators.py             functions that torch.compile keeps as one operator
    torch_internals.py       torch's private names
"""
