"""`stallwise probe [torchrun's options]`."""

import enum
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer, no
from stallwise.cli.torchrun import (
    MasterAddr,
    MasterPort,
    Nnodes,
    NodeRank,
    NprocPerNode,
    RdzvBackend,
    RdzvEndpoint,
    RdzvId,
)
from stallwise.errors import InputError
from stallwise.units import KIB, MIB

if TYPE_CHECKING:
    from stallwise.record.link_probe import Progress

_PROGRESS_S = 5.0


class Backend(enum.StrEnum):
    """torch.distributed's back ends that can be probed."""

    GLOO = "gloo"
    NCCL = "nccl"


def probe(
    out: Annotated[Path, typer.Option("-o", "--out", help="File of the machine record.")] = Path("machine.json"),
    backend: Annotated[
        Backend | None, typer.Option("--backend", help="Default: nccl where every process has a GPU, else gloo.")
    ] = None,
    max_time_s: Annotated[float, typer.Option("--max-time", help="Seconds to measure at most.")] = 45.0,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the other nodes' ranks.")] = 120.0,
    max_mib: Annotated[int, typer.Option("--max-mib", help="Largest message, in MiB.")] = 64,
    nproc_per_node: NprocPerNode = None,
    nnodes: Nnodes = 1,
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = None,
    master_port: MasterPort = None,
    rdzv_backend: RdzvBackend = None,
    rdzv_endpoint: RdzvEndpoint = None,
    rdzv_id: RdzvId = None,
    as_json: Json = False,
) -> None:
    """Measure how long an all-reduce takes between your ranks, and save it as a machine record.

    Messages from 4 KiB up, inside nodes and between them. Give the options you give torchrun, on every node; node 0
    shows the result. Exit code 0: measured. 1: interrupted, nothing is written. 2: it could not be measured.
    """
    from stallwise.record.link_probe import LinkProbe, run_probe
    from stallwise.record.torchrun import TorchrunOptions

    for name, value_s in (("--max-time", max_time_s), ("--wait", wait_s)):
        if not 1 <= value_s < math.inf:
            raise InputError(f"{name} takes seconds from 1, not {value_s:g}.")
    if not 1 <= max_mib <= 16 * KIB:
        raise InputError(f"--max-mib takes a size from 1 to {16 * KIB} MiB, not {max_mib}.")
    options = TorchrunOptions(
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
    )
    torchrun = options.arguments()
    if options.world().world_size < 2:
        raise InputError("An all-reduce takes at least two ranks. Give --nproc-per-node 2 or more, or --nnodes.")
    wanted = LinkProbe(
        torchrun=torchrun,
        node_rank=node_rank,
        out=out,
        backend=None if backend is None else backend.value,
        max_s=max_time_s,
        max_bytes=max_mib * MIB,
        join_s=wait_s,
    )
    typer.echo(f"stallwise: waiting for {options.world().world_size} ranks", err=True)
    try:
        record = run_probe(wanted, _Teller())
    except KeyboardInterrupt:
        raise no("stallwise: The probe was interrupted; nothing was written.") from None
    if record is None:
        typer.echo("stallwise: This node has done its part; node 0 shows the result.", err=True)
        return
    from stallwise.report.machine import draw_machine

    answer(lambda: record, lambda: draw_machine(record), as_json=as_json)
    typer.echo(f"\nThe machine record is {out}", err=True)


class _Teller:
    """Says on stderr what is being measured: at the start of each link, then every few seconds."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._doing = ""

    def __call__(self, now: "Progress") -> None:
        if now.doing == self._doing and time.monotonic() - self._last_s < _PROGRESS_S:
            return
        self._last_s, self._doing = time.monotonic(), now.doing
        typer.echo(f"stallwise: {now.doing}, {now.done:.0%} done", err=True)
