"""Pure functions from facts to seconds and bytes: no files, no processes, no torch."""
