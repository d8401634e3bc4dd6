"""Helpers that know nothing about training: files, text, typed options, child processes, torch's private names.

files/                files and folders: untrusted names and contents, JSON, complete outputs, locks, faults of disks
values/               typed options, validated values, rounding
text/                 numbers and times, tables, long output, the log on a terminal
processes/            child processes, the process table, waiting
pytorch/              torch's private names, operators, CUDA graphs
replaced_attribute.py temporary replacements for attributes
"""
