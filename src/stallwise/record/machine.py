"""This machine as a run remembers it: no host name, nothing that names a person."""

from stallwise.record import probe
from stallwise.run.manifest import NodeRecord


def this_node(node: int) -> NodeRecord:
    """Processor, cores this job may use, memory and GPUs."""
    cpu = probe.cpu()
    return NodeRecord(
        node=node,
        cpu_model=cpu.model,
        cores=max(1, int(cpu.usable)),
        memory_bytes=probe.memory_bytes(),
        gpus=tuple(gpu.name for gpu in probe.gpus()),
    )
