"""Commands, a module each. cli/ has their table and parser, and runs them."""
