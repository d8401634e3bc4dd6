"""Parts of commands: options and messages that several share, and steps of the longer ones.

shared_options.py                       configurations, launchers, models and modules of the user
data_options.py, data_messages.py       `megatape prepare` and `megatape data`
study_options.py                        `megatape study`
task_options.py                         `megatape evaluate`: its options depend on the tasks
prompts.py, continuations.py, chat.py   `megatape generate`: reading prompts, continuing them in batches, chatting
"""
