"""torchrun's options, handed through as the user gave them."""

import os
from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.record import probe
from stallwise.run.manifest import WorldRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunOptions:
    """None: not given. With none given the script runs as one plain process, as `python train.py` would."""

    nproc_per_node: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None

    def arguments(self) -> tuple[str, ...]:
        """torchrun's command line; empty where torchrun is not needed."""
        if self.nproc_per_node is None and self.nnodes == 1:
            return ()
        self._check()
        given = {
            "--nproc-per-node": self.nproc_per_node or "1",
            "--nnodes": str(self.nnodes),
            "--node-rank": str(self.node_rank),
            "--master-addr": self.master_addr,
            "--master-port": None if self.master_port is None else str(self.master_port),
            "--rdzv-backend": self.rdzv_backend,
            "--rdzv-endpoint": self.rdzv_endpoint,
            "--rdzv-id": self.rdzv_id,
        }
        # Without an address torchrun uses one fixed port, and two jobs on a machine collide.
        alone = () if self.nnodes > 1 or self.master_port or self.rdzv_endpoint else ("--standalone",)
        return (*alone, *(word for name, value in given.items() if value is not None for word in (name, value)))

    def world(self) -> WorldRecord:
        """How many ranks the job is going to have."""
        return WorldRecord(world_size=self.nnodes * self._per_node(), nnodes=self.nnodes)

    def run_id(self) -> str | None:
        """Nodes with disks of their own must give their parts of one run the same name."""
        if self.nnodes == 1:
            return None
        return self.rdzv_id or f"{self.master_addr or self.rdzv_endpoint}-{self.master_port or ''}".strip("-")

    def _check(self) -> None:
        if self.nnodes > 1 and self.master_addr is None and self.rdzv_endpoint is None:
            raise InputError("Several nodes need --master-addr and --master-port, or --rdzv-endpoint, to find each other.")
        self._per_node()

    def _per_node(self) -> int:
        given = self.nproc_per_node or "1"
        if given == "gpu" or (given == "auto" and probe.gpus()):
            return max(1, len(probe.gpus()))
        if given in ("cpu", "auto"):
            return os.cpu_count() or 1
        if not given.isdigit() or int(given) < 1:
            raise InputError(f"--nproc-per-node takes a number, gpu, cpu or auto, not {given!r}.")
        return int(given)
