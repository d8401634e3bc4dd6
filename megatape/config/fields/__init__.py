"""Functions reading the fields of sections, for help, documentation, errors, and comparing configurations."""
