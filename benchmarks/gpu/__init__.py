"""Measurements that need a GPU; run by hand, figures in evidence/gpu.md."""
