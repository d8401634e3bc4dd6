"""Values, and their description.

options.py           typed options of commands and evaluation tasks
documented_model.py  models whose docstrings describe their fields
validation.py        JSON values converted to types
rounding.py          integer division that rounds up
lazy_sequence.py     sequences that read an item when it is used
"""
