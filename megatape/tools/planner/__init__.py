"""Speed of a configuration, and the search for the fastest ranks and settings that fit into memory."""
