"""The plan as text.

report.py         the report of `megatape plan`, from the rows below
resource_rows.py  parameters, FLOPs, memory, traffic and offloading
speed_rows.py     time and cost
failure_rows.py   failures
stages.py         comparison of the ZeRO stages
search_report.py  the report of `megatape plan --search`
study_report.py   the plan of `megatape study compare --dry-run`
"""
