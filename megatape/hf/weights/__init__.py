"""Weight files of model folders: headers, reading, writing, and checking them against a model."""
