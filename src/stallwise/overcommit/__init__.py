"""Overcommitted hosts: virtual machines and pods that shrink instead of being preempted (Fuerst et al., HPDC 2020).

| module     | contents                                                                                |
| ---------- | --------------------------------------------------------------------------------------- |
| resources  | amounts of five resources, virtual machines that come and go, hosts                     |
| traces     | traces of Azure and Alibaba, plain tables, use over time; what they do not say is drawn |
| _shares    | who gives how much of a resource, and how well a host suits a machine                   |
| simulator  | machines through a fleet, event by event; `_kernels` has the compiled loop              |
| comparison | smaller and smaller fleets, rule beside rule, preemption beside them                    |

Two parts of `cluster` are shared rather than written twice: the compiled event heap (`cluster.engine`), and the parsing
of rows with one problem per bad line (`cluster.traces.rows`). Nothing in `cluster` imports this package.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.overcommit.comparison import OvercommitComparison, overcommit
    from stallwise.overcommit.resources import Hosts, VirtualMachines
    from stallwise.overcommit.traces import read_hosts, read_machines, read_use

__all__ = ["Hosts", "OvercommitComparison", "VirtualMachines", "overcommit", "read_hosts", "read_machines", "read_use"]

__getattr__ = loader(
    __name__,
    {
        "Hosts": "resources",
        "OvercommitComparison": "comparison",
        "VirtualMachines": "resources",
        "overcommit": "comparison",
        "read_hosts": "traces",
        "read_machines": "traces",
        "read_use": "traces",
    },
)
