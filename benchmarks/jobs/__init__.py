"""Training scripts the benchmarks run."""
