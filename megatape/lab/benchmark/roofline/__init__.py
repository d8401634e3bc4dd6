"""Estimates of training steps by the planner's roofline model.

roofline.py   the report
estimates.py  estimates of steps and layers, with the planner's operations

figures/targets.py has the targets that the report compares them with.
"""
