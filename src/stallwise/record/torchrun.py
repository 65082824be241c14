"""torchrun's options, handed through as the user gave them."""

import os
import socket
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
        self._check()
        addresses = (self.master_addr, self.master_port, self.rdzv_backend, self.rdzv_endpoint, self.rdzv_id)
        if self.nproc_per_node is None and self.nnodes == 1 and all(given is None for given in addresses):
            return ()
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
        if self.nnodes < 1:
            raise InputError(f"--nnodes takes a number of nodes from 1, not {self.nnodes}.")
        if not 0 <= self.node_rank < self.nnodes:
            raise InputError(f"--node-rank takes a number from 0 to {self.nnodes - 1}, not {self.node_rank}.")
        if self.nnodes > 1 and self.master_addr is None and self.rdzv_endpoint is None:
            raise InputError("Several nodes find each other by --master-addr and --master-port, or --rdzv-endpoint.")
        self._per_node()
        if self.master_port is not None and self.node_rank == 0 and self.rdzv_endpoint is None:
            _check_port(self.master_port)

    def _per_node(self) -> int:
        given = self.nproc_per_node or "1"
        if given == "gpu" or (given == "auto" and probe.gpus()):
            return max(1, len(probe.gpus()))
        if given in ("cpu", "auto"):
            return os.cpu_count() or 1
        if not given.isdigit() or int(given) < 1:
            raise InputError(f"--nproc-per-node takes a number, gpu, cpu or auto, not {given!r}.")
        return int(given)


def _check_port(port: int) -> None:
    """torchrun would take a minute, or print a page, to say the same."""
    with socket.socket() as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind(("", port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "a port is a number up to 65535"
            raise InputError(f"--master-port {port} cannot be used here ({reason}). Choose another port.") from None
