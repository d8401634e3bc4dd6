"""Generates text with a loaded model, from prompts or in conversations.

sampling.py       options of sampling
prompts.py        token ids of prompts and conversations
continuations.py  continues prompts: start here
streamed_text.py  decodes generated tokens one by one
"""
