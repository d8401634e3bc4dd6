"""What reads the fields of sections: help and documentation, comparing configurations, and errors."""
