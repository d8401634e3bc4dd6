"""The command line: the table of commands, their parser, and running one."""
