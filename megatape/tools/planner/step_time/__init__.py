"""Seconds of a training step: a range between a bad and a good case.

speed.py     adds up the parts below, which may overlap
device.py    time on the GPU: efficiency.py is the roofline model, with the rates of rates.py
links.py     bytes leaving a GPU, to its own node and to other nodes
offload.py   bytes and time of offloading to host memory
host.py      CPU time for launching the step
measured.py  measured steps, which correct the estimate
cases.py     values of both cases
"""
