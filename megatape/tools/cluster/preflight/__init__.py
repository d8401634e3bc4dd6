"""Checks of all ranks before a run.

preflight.py      the checks in their order, on each rank: start here
rendezvous.py     key-value store through which all ranks exchange their reports; timeouts.py has its timeouts
bandwidth.py      checks the results of collectives, and measures their speed
rank_report.py    a rank's report, the reasons why a run would fail, and the printed table
"""
