"""Parameters, FLOPs, memory and traffic of a configuration, computed from shapes alone."""
