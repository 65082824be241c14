"""One module per field; each has a tuple `CASES`."""
