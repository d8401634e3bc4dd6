"""Plans a run on a cluster, for `megatape plan`: whether it fits, how fast it is, and which settings are better.

* report.py writes the plan from the rows of report_rows.py, and stages.py compares the ZeRO stages.
* search_report.py writes the result of a search (search.py) among settings (search_space.py, value_grids.py), each of them a
  `Candidate` (candidate.py) with memory requirements and speed.
* memory_requirements.py compares memory with a `PlannedCluster` (planned_cluster.py).
* speed.py adds up the time of a step: on the GPU (device.py), exchanging (links.py), offloading (offload.py), and launching
  kernels on the host (host.py), each for a bad and a good case (cases.py). measured.py corrects the estimate.
* device.py gets a step's kernels from work.py, which counts the operations (operations.py, counting.py) of a model that
  runs on shapes, and those that torch.compile fuses (fusion.py). efficiency.py gives the time that each of them takes at the
  rates of rates.py.
"""
