"""From a source to a data directory, by any number of processes and machines."""
