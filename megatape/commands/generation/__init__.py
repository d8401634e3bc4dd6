"""Steps of `megatape generate`.

prompts.py          reads prompts and conversations
continuations.py    continues them in batches
chat.py             chats on the terminal
"""
