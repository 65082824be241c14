"""Whose a folder of checkpoints is, and which round may write to it.

A folder, or a prefix of an object store, belongs to one job. Its record (`StoreOwner`) names the job, the coordinator
and the round that last claimed it, and a fence: a number that grows with every claim. A round claims it before it
restores; a commit must find the claim of its own round still there, in the same atomic step that makes the checkpoint
visible. So of two rounds that both take themselves for the job only the later one's checkpoints become visible.

Rounds are ordered within one coordinator by their number. A coordinator that was started anew counts from 0 again: it
takes the folder over from the earlier one, whose rounds can never claim it again.
"""

from dataclasses import dataclass

import msgspec

from stallwise.elastic._manifest import checkpoint_step
from stallwise.errors import InputError

OWNER_FORMAT = 1
MAX_OWNER_BYTES = 1 << 20
_PAST_COORDINATORS = 1000


class SupersededError(Exception):
    """A later round has claimed the checkpoints: this rank is no longer the job."""


class StoreOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a folder's owner. `past`: coordinators whose rounds may not claim it again."""

    format: int
    job: str
    coordinator: str
    round: int
    fence: int
    past: list[str]
    checkpoints: list[str] = []
    """Of an object store: the visible ones. A folder's are its subfolders."""
    damaged: list[str] = []


@dataclass(frozen=True, slots=True)
class RoundIdentity:
    """A round as checkpoints know it. Under plain torchrun each start counts as another coordinator."""

    job: str
    coordinator: str
    round: int


def decode_owner(data: bytes, shown: str) -> StoreOwner:
    """Decode an owner's record; InputError where it is none or of a newer version."""
    try:
        owner = msgspec.json.decode(data, type=StoreOwner)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(
            f"The record of the job that {shown} belongs to is damaged ({error}). If no job uses the checkpoints "
            "there, remove it."
        ) from None
    if owner.format > OWNER_FORMAT:
        raise InputError(f"The checkpoints in {shown} are of a newer Stallwise.")
    return owner


def claimed(owner: StoreOwner | None, claim: RoundIdentity, shown: str) -> StoreOwner:
    """Return the record after the claim; InputError for another job, SupersededError for an earlier round."""
    if owner is None:
        return StoreOwner(
            format=OWNER_FORMAT, job=claim.job, coordinator=claim.coordinator, round=claim.round, fence=1, past=[]
        )
    if owner.job != claim.job:
        raise InputError(
            f"{shown} has the checkpoints of job {owner.job!r}, and this is job {claim.job!r}. Name another folder, or "
            "go on with that job under its name."
        )
    past = owner.past
    if claim.coordinator == owner.coordinator:
        if claim.round < owner.round:
            raise SupersededError(f"round {owner.round} has begun, this is round {claim.round}")
    elif claim.coordinator in past:
        raise SupersededError("another coordinator has taken the job over")
    else:
        past = [*past, owner.coordinator][-_PAST_COORDINATORS:]
    return msgspec.structs.replace(
        owner, coordinator=claim.coordinator, round=claim.round, fence=owner.fence + 1, past=past
    )


def check_claim(owner: StoreOwner | None, fence: int) -> None:
    """Raise SupersededError unless the claim with this fence is the last one."""
    if owner is None or owner.fence != fence:
        last = "its record is gone" if owner is None else f"round {owner.round} has claimed the checkpoints"
        raise SupersededError(f"{last} since this one did")


def names_to_remove(names: list[str], whole: frozenset[str], keep: int) -> list[str]:
    """Return the checkpoints that may go, oldest first, so that the newest `keep` of `whole` stay.

    `whole` are those this round has checked or written. Others do not count, and go only when they are older than all
    that stay. As long as none is whole, none goes.
    """
    ordered = sorted(names, key=lambda name: checkpoint_step(name) or 0)
    stays = [name for name in ordered if name in whole][-keep:]
    if not stays:
        return []
    older = [name for name in ordered if (checkpoint_step(name) or 0) < (checkpoint_step(stays[0]) or 0)]
    unchecked = [name for name in older if name not in whole]
    spared = set(unchecked[len(unchecked) - (keep - len(stays)) :]) if keep > len(stays) else set()
    return [name for name in ordered if name not in stays and name not in spared and (name in whole or name in older)]
