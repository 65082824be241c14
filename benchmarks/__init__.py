"""Performance claims. Each module measures us and a peer in the same run; `python -m benchmarks` runs them all."""
