"""What is trained, apart from machines: layers, gradients in the order they become ready, and a model's features."""

from stallwise.workload.features import ModelFeatures
from stallwise.workload.layers import Layer, LayerTrace

__all__ = ["Layer", "LayerTrace", "ModelFeatures"]
