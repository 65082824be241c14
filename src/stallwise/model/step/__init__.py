"""One training step: its graph, its time in steady state, set-ups as columns, what-if, epochs and traced timelines."""
