"""Plans a run on a cluster: whether it fits, how fast it is, and which settings are better.

`megatape plan` prints report/report.py, and `megatape plan --search` report/search_report.py.

planned_cluster.py      the cluster, and a check that a run's ranks fill its nodes evenly
memory_requirements.py  memory that a run needs, compared with the cluster's
candidate.py            a run on the cluster, with its memory and speed, planned when first read
kernels/                GPU operations of a step, counted by running the model on shapes
step_time/              seconds of a step, from the operations, the exchanges, and the host's work
search/                 the fastest settings that fit, and the smallest change that makes a run fit
failures/               goodput of a run that fails at random
report/                 all of this as text
"""
