"""Training that survives losing machines.

In the training script: `join` (_rendezvous), `Session` (_session), `Resumable` and `Augmented` (_batches). Below them:

    _rendezvous   how ranks join a round, agree after every step, and leave; _exchange: messages between them
    _checkpoints  the state of a job, saved beside training and restored; _tensors and _manifest: what is on the disk
    _storage      folders of checkpoints; remote: object stores; _ownership: which round may write to them
    _interval     when to save
    _notices      revocation notices: SIGTERM and the clouds' metadata endpoints
    throughput    times of every step, and the alarm when a job is slower than its workers should be
    protocol      environment variables, exit codes and the event log

Beside it, on every machine: _host (`python -m stallwise.elastic`), _agent and forkserver, which start the ranks, and
_membership, by which the agent takes part in rounds. On one machine: _coordinator; wire is how they speak to it. chaos
replays a revocation trace on a local job, whose script is _standin.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.elastic._batches import Augmented, Resumable
    from stallwise.elastic._rendezvous import join
    from stallwise.elastic._session import Session

__all__ = ["Augmented", "Resumable", "Session", "join"]

# Torch is needed by the training side only; the watch and its arithmetic do without.
__getattr__ = loader(
    __name__,
    {
        "Augmented": "_batches",
        "Resumable": "_batches",
        "Session": "_session",
        "join": "_rendezvous",
    },
)
