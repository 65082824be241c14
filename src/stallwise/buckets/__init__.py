"""Which gradients travel together, carried out: a plan from `stallwise whatif --best-buckets`, in real DDP.

from stallwise.buckets import planned_ddp

model = planned_ddp(model, "plan.json")     # instead of DistributedDataParallel(model)
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.buckets.ddp import carried_out, planned_ddp
    from stallwise.buckets.plan import Bucket, BucketPlan, read_plan, write_plan

__all__ = ["Bucket", "BucketPlan", "carried_out", "planned_ddp", "read_plan", "write_plan"]

# A plan is made and read without torch; only carrying it out needs it.
__getattr__ = loader(
    __name__,
    {
        "Bucket": "plan",
        "BucketPlan": "plan",
        "carried_out": "ddp",
        "planned_ddp": "ddp",
        "read_plan": "plan",
        "write_plan": "plan",
    },
)
