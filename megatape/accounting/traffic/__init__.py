"""Bytes that a rank sends in a step.

rank_traffic.py   all of them, by group of ranks and collective
model_traffic.py  those of the model's own collectives
node_traffic.py   the share leaving a node
"""
