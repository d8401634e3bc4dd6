"""The command line: from the words that a user types to calling the function of a command.

main.py receives the words. command_line.py builds the parser from the commands in table.py and the fields of their options
(command.py, arguments.py). running.py validates the options, calls the function, and turns errors into messages and exit
statuses. extras.py names the extra that installs an optional package, and deepspeed_setup.py prepares the import of DeepSpeed.
output.py prints paragraphs, and terminal.py is for commands in which a model talks with the user.
"""
