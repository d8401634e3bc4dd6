"""The folder of an unfinished preparation, which is all that its processes share.

folder.py         content of the folder, and how results are published
plan.py           stored facts that decide every byte of the result
stored_units.py   units of the plan, read one at a time
folder_leases.py  leases in the folder, by the work that they are for
unit_lease.py     a lease, kept by heartbeats on any shared file system
"""
