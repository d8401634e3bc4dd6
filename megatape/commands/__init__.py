"""Commands, a module each: `megatape plan` is plan.py, and `megatape prepare corpus` is prepare/corpus.py.

A command's module has its options (`Options`), the function `run(options)` and the command line that its help shows
(`EXAMPLE`). Only cli/, options/ and generation/ have other modules.

cli/                          table of commands; from the words that a user types to calling `run`
options/                      options that commands share
generation/                   steps of `megatape generate`
ledger.py                     a short command, to read next
prepare/, data/               commands for data directories
pretrain.py, plan.py, ...     the other commands
study/, benchmark/            commands of megatape/lab

Commands only translate options: the work is done in the packages that `run` imports.
"""
