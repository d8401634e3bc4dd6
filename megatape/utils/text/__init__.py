"""Text for people.

units.py            numbers, sizes and times
tables.py           tables
paragraphs.py       long output, shown as soon as it is known
terminal.py         the log on the terminal
url_secrets.py      passwords in URLs, hidden
"""
