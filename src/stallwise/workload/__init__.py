"""What is trained, apart from machines: layers, and gradients in the order they become ready."""

from stallwise.workload.layers import Layer, LayerTrace

__all__ = ["Layer", "LayerTrace"]
