"""What is trained, apart from machines.

layers     one training step layer by layer, with the gradients that backward makes ready
families   image networks by structure, tensor by tensor
shapes     transformers by shape, and scheduler jobs by totals
zoo        counted image networks by name, and the one most similar to an unknown name
"""

from stallwise.workload.layers import Layer, LayerTrace

__all__ = ["Layer", "LayerTrace"]
