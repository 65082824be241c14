"""Training that survives losing machines.

In the training script: `join` (rendezvous), `Session` (session), `Resumable` and `Augmented` (batches). Below them:

    rendezvous    how ranks join a round, agree after every step, and leave; exchange: messages between them
    checkpoints   the state of a job, saved beside training and restored; tensors and manifest: what is on the disk
    storage       folders of checkpoints; remote: object stores; ownership: which round may write to them
    interval      when to save
    notices       revocation notices: SIGTERM and the clouds' metadata endpoints
    throughput    times of every step, and the alarm when a job is slower than its workers should be
    protocol      environment variables, exit codes and the event log

Beside it, on every machine: host (`python -m stallwise.elastic`), agent and forkserver, which start the ranks, and
membership, by which the agent takes part in rounds. On one machine: coordinator; wire is how they speak to it. chaos
replays a revocation trace on a local job, whose script is standin.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.elastic._batches import Augmented, Resumable
    from stallwise.elastic._rendezvous import Member, join
    from stallwise.elastic._session import Session

__all__ = ["Augmented", "Member", "Resumable", "Session", "join"]

# Torch is needed by the training side only; the watch and its arithmetic do without.
__getattr__ = loader(
    __name__,
    {
        "Augmented": "_batches",
        "Member": "_rendezvous",
        "Resumable": "_batches",
        "Session": "_session",
        "join": "_rendezvous",
    },
)
