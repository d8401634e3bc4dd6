"""Comparing encodings on text or addition problems.

compare.py  plan and runs of `megatape study compare`: start here
measure.py  evaluates a complete run
report.py   tables and picture
"""
