"""Commands, a module each. cli/ has their table and parser, and runs them.

A command's module has its options (`Options`), the function `run(options)` and the command line that its help shows
(`EXAMPLE`). `megatape prepare corpus` is prepare/corpus.py.

cli/                          from the words that a user types to calling `run`: start with its docstring
ledger.py                     a short command, to read next
prepare/, data/               commands for data directories
pretrain.py, plan.py, ...     the other commands
study/, benchmark/            commands of megatape/lab
evaluation/, generation/      parts of evaluate.py and generate.py

Commands only translate options: the work is done in the packages that `run` imports.
"""
