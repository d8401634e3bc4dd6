"""Options that several commands share.

shared_options.py   configurations, launchers, models and modules of the user
data_options.py     `megatape prepare` and `megatape data`
study_options.py    `megatape study`
task_options.py     `megatape evaluate`: its options depend on the tasks
"""
