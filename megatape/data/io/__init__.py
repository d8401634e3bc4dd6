"""Files at paths and URLs: found, opened, copied and read as lines or tar members."""
