"""The command line: from the words that a user types to calling the function of a command.

main.py          receives the words: start here
command_line.py  builds the parser (parser.py) from the commands (table.py) and the fields of their options (arguments.py)
command.py       loads a command from its module
running.py       validates the options, calls the function, and turns errors into messages and exit statuses

These and the commands use five other modules:

extras.py           names the extra that installs an optional package
deepspeed_setup.py  prepares the import of DeepSpeed
output.py           prints paragraphs
data_messages.py    messages of commands that read or write data
terminal.py         input and output of commands in which a model talks with the user
"""
