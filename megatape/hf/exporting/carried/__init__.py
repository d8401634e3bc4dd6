"""Rewrites Python files of this package and its users, so that exported folders can carry them.

Imports from megatape become imports from files in the same folder. Statements that only training needs are dropped, such as an
optimizer in the same file as an encoding.

statements.py      names that statements define and use
imports.py         what becomes of each import: a carried file, a stand-in, or nothing
dropped.py         statements to drop
carried_file.py    rewriting one file
collect.py         collecting all files that an export carries
"""
