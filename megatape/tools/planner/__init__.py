"""Plan of a run on a cluster, for `megatape plan`: whether it fits, how fast it is, and which settings are better.

* report.py writes the plan of a run, by rows of report_rows.py, and stages.py compares the ZeRO stages.
* search_report.py writes the result of a search (search.py) among settings (search_space.py, value_grids.py). Each of them is
  a `Candidate` (candidate.py) with its memory requirements and its speed.
* memory_requirements.py compares memory with that of a `PlannedCluster` (planned_cluster.py).
* speed.py adds up the time of a step: on the GPU (device.py), in exchanges (links.py), in offloading (offload.py) and on the
  host that launches kernels (host.py). Each is estimated for a bad and a good case (cases.py). measured.py corrects the
  estimate.
* device.py gets the kernels of a step from work.py, which counts the operations (operations.py, counting.py) of a model that
  runs on shapes, and those that torch.compile fuses (fusion.py). efficiency.py gives the time that each of them takes at the
  rates of rates.py.
"""
