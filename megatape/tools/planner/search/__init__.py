"""Search for settings: the fastest ones that fit a cluster, and the smallest change that makes a run fit.

value_grids.py   the settings that may change, and their values
search_space.py  all combinations, each with its `Candidate`
search.py        the search among them
"""
