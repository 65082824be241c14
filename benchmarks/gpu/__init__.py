"""Measurements that need a GPU; run by hand, figures in docs/gpu.md."""
