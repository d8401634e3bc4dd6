"""Statistics of a suite: cells with means over seeds, tested differences from the reference, ranks.

score_table.py        cells by task, split and contender
hypothesis_tests.py   tests, and corrections for their number
difference_tests.py   the tests that a plan can choose for all differences
differences.py        differences from the reference on a split
overall.py            differences over all tasks
ranks.py              ranks of the encodings
summary.py            all of these for the records of a suite
"""
