"""The plan with the shortest predicted step: the exact optimum of `model.merge` over a job's own gradients."""

from dataclasses import dataclass, replace

from stallwise.buckets.plan import Bucket, BucketPlan, Forecast
from stallwise.errors import InputError
from stallwise.model import merge
from stallwise.model.calibrate import own_links
from stallwise.model.fabric import Fabric
from stallwise.model.overlap import Overlap
from stallwise.model.whatif import Answer, Change, Job, what_if
from stallwise.record.setup import Asked, setup_of
from stallwise.workload.layers import Layer, is_bucket, is_unnamed, plain_name

# Less than this part of a step is within what the model is off by.
WORTHWHILE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A plan beside what the job has now."""

    plan: BucketPlan
    planned: Answer
    own: Answer
    own_buckets: int

    @property
    def gain(self) -> float:
        """Part of the own step that the plan saves."""
        return 1 - self.planned.step_s / self.own.step_s

    @property
    def whole_buckets(self) -> bool:
        """Whether the smallest pieces known are the job's own buckets, so that none could be cut."""
        return not self.plan.named and all(is_bucket(name) for b in self.plan.buckets for name in b.parameters)

    @property
    def worthwhile(self) -> bool:
        """Whether it saves at least 1 % of a step."""
        return self.gain >= WORTHWHILE


def best_for(job: Job, change: Change, asked: Asked) -> Best:
    """The best buckets of a job on the links that were asked for, or on its own."""
    setup = setup_of(job, asked, own_links(job, asked.latency_s or 0.0))
    return best_buckets(job, change, setup.fabric, setup.gpus)


def best_buckets(job: Job, change: Change, fabric: Fabric | None, gpus: int | None) -> Best:
    """The optimal merge of the job's gradients on these links, and the step with it and with the job's own buckets.

    Where it saves less than 1 % of a step the plan is the job's own buckets.
    """
    if fabric is None or gpus is None or gpus < 2:
        raise InputError(
            "Buckets matter where several GPUs exchange gradients, and no link between them is known. "
            "Give --gpus with --network, --link or --machine."
        )
    overlap = change.overlap or job.overlap
    if overlap.scheme != "ddp":
        raise InputError(f"Buckets are DDP's; overlap {overlap.scheme!r} has none that could be planned.")
    if overlap.sparse is not None or overlap.through != "all-reduce":
        raise InputError(
            "Buckets are planned for all-reduces of whole gradients. Leave --compress topk and gtopk, and parameter "
            "servers, out."
        )
    planned = replace(change, overlap=replace(overlap, scheme="optimal"))
    trace = replace(job.trace, layers=tuple(_scaled(layer, change) for layer in job.trace.layers))
    gradients = merge.gradients_of(trace)
    price = fabric.prices(gpus).all_reduce
    runs = merge.optimal_merge(gradients, lambda size: price(size * overlap.compression))
    own, best = (what_if(job, one, fabric, gpus) for one in (replace(change, overlap=overlap), planned))
    own_runs = _own_runs(gradients, overlap)
    if best.step_s > (1 - WORTHWHILE) * own.step_s:
        runs, best = own_runs, own  # what the model cannot tell apart is left as it is
    return Best(
        plan=_plan(job, gradients, runs, gpus, _forecast(best, own, job, change, fabric)),
        planned=best,
        own=own,
        own_buckets=len(own_runs),
    )


def _scaled(layer: Layer, change: Change) -> Layer:
    factor = change.batch / change.compute_speed
    return replace(layer, backward_s=layer.backward_s * factor)


def _own_runs(gradients: merge.Gradients, overlap: Overlap) -> merge.Merge:
    return merge.ddp_buckets(gradients, first_bytes=overlap.first_bucket_bytes, bucket_bytes=overlap.bucket_bytes)


def _forecast(best: Answer, own: Answer, job: Job, change: Change, fabric: Fabric) -> Forecast:
    alone = what_if(job, change, fabric, 1)
    return Forecast(planned_s=best.step_s, own_s=own.step_s, without_exchange_s=alone.step_s)


def _plan(job: Job, gradients: merge.Gradients, runs: merge.Merge, gpus: int, forecast: Forecast) -> BucketPlan:
    names = [plain_name(job.trace.layers[index].name) for index in gradients.layers]
    return BucketPlan(
        source=job.name,
        gpus=gpus,
        buckets=tuple(
            Bucket(parameters=tuple(names[i] for i in run), bytes=sum(gradients.bytes[i] for i in run)) for run in runs
        ),
        named=not any(map(is_unnamed, names)),
        forecast=forecast,
    )
