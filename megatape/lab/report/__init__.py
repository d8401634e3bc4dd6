"""Pages about runs, data and suites: their contents, a template, JavaScript."""
