"""Gradient bucket plans for `DistributedDataParallel`: which gradients are exchanged together.

from stallwise.buckets import planned_ddp

model = planned_ddp(model, "plan.json")     # instead of DistributedDataParallel(model)

    plan.py      the plan and its file
    search.py    the plan with the shortest predicted step (`stallwise whatif` writes it)
    _ddp.py      DDP with the buckets of a plan; needs torch
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.buckets._ddp import applied_plan, planned_ddp
    from stallwise.buckets.plan import BucketPlan, GradientBucket, read_plan, write_plan

__all__ = [
    "BucketPlan",
    "GradientBucket",
    "applied_plan",
    "planned_ddp",
    "read_plan",
    "write_plan",
]

# Plans are made and read without torch; only applying them needs it.
__getattr__ = loader(
    __name__,
    {
        "BucketPlan": "plan",
        "GradientBucket": "plan",
        "applied_plan": "_ddp",
        "planned_ddp": "_ddp",
        "read_plan": "plan",
        "write_plan": "plan",
    },
)
