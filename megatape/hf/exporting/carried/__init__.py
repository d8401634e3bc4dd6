"""Python files of this package and of its users, rewritten so that exported folders can carry them.

Imports from megatape become imports of files in the same folder. Statements that only training needs, such as an optimizer
beside an encoding, are dropped.

statements.py      names that statements define and use
imports.py         imports of a module, as exported folders have them
dropped.py         statements to drop
carried_file.py    a rewritten file
collect.py         all files that an export carries
"""
