"""Prepares prompts and answers as a data directory.

prepare.py reads records (example_source.py, fields.py), converts each to an example by its format (format.py; chat.py,
prompt_format.py, scrolls.py), and writes shards and answers (example_folder.py). preview.py prints them.
Conversations: conversation.py parses them, chat_template.py converts them to tokens, using chat_rendering.py and
rendered_conversation.py.
"""
