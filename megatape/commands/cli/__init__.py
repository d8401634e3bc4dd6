"""The command line: from the words that a user types to calling the function of a command.

main.py receives the words. command_line.py builds the parser from the commands in table.py and the fields of their options
(command.py, arguments.py). running.py validates the options, calls the function, and turns errors into messages and exit
statuses. shared_options.py has options that several commands share.
"""
