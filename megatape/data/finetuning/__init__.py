"""From records of prompts and answers to a data directory: format (a file each) -> example -> shards and answers."""
