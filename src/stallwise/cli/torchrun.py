"""torchrun's options, as every command that starts ranks takes them."""

from typing import Annotated

import typer

_PANEL = "torchrun's options"

NprocPerNode = Annotated[
    str | None, typer.Option("--nproc-per-node", help="Processes on this node.", rich_help_panel=_PANEL)
]
Nnodes = Annotated[int, typer.Option("--nnodes", help="Nodes.", rich_help_panel=_PANEL)]
NodeRank = Annotated[int, typer.Option("--node-rank", help="This node's number.", rich_help_panel=_PANEL)]
MasterAddr = Annotated[str | None, typer.Option("--master-addr", help="Address of node 0.", rich_help_panel=_PANEL)]
MasterPort = Annotated[int | None, typer.Option("--master-port", help="Port on node 0.", rich_help_panel=_PANEL)]
RdzvBackend = Annotated[str | None, typer.Option("--rdzv-backend", help="Rendezvous back end.", rich_help_panel=_PANEL)]
RdzvEndpoint = Annotated[
    str | None, typer.Option("--rdzv-endpoint", help="Rendezvous HOST:PORT.", rich_help_panel=_PANEL)
]
RdzvId = Annotated[str | None, typer.Option("--rdzv-id", help="Rendezvous id.", rich_help_panel=_PANEL)]
