"""Cleaning: edits the documents of a source, and decides which ones to write.

rule.py           base classes of rules, and their options on the command line
rules/            the rules about single documents, by subject: to add one, write a file there
decisions.py      applies the rules to one document after another, and drops duplicates within one unit, in memory
near_duplicates/  the rule about near duplicates, and its decision across units
first_pass.py     stores the hashes and keys of a unit's documents, for duplicates across units
comparison.py     compares those of all units
stored/           formats of the files in which they are stored
word_runs.py      hashes of consecutive words, by which several rules compare texts
"""
