"""Estimates of training steps by the planner's roofline model.

roofline.py   the report
estimates.py  estimates of steps and layers, with the planner's operations
targets.py    our targets, and whether a measurement or estimate meets them
"""
