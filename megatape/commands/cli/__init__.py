"""The command line, from the words that a user types to the function of a command.

main.py reads the words. command_line.py makes their parser of the commands in table.py and of the fields of each command's
options (command.py, arguments.py). running.py checks the options, calls the function, and turns errors into messages and exit
statuses. shared_options.py has groups of options that several commands take.
"""
