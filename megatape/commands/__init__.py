"""The command line: a module per command, their table and parser, and running one."""
