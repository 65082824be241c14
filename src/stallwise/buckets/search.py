"""The bucket plan with the shortest predicted step.

Gradients are merged by `model.exchange.merge.optimal_merge`, the exact optimum for the message costs of a set-up.
Savings below 1 % of a step are within the error of the model: then the plan is the job's own buckets.
"""

from dataclasses import dataclass, replace

from stallwise.analysis.analysis import Analysis
from stallwise.analysis.fleets import steps_of
from stallwise.analysis.prediction import fleet_of, settings_of
from stallwise.analysis.target import Target
from stallwise.buckets.plan import BucketForecast, BucketPlan, GradientBucket
from stallwise.errors import InputError
from stallwise.model.exchange import merge
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob, own_links
from stallwise.model.step.setups import Setups, StepEstimate, step_estimates, step_times, trace_of
from stallwise.workload.layers import is_bucket, is_unnamed, plain_name

WORTHWHILE = 0.01
"""Fraction of a step below which a saving is within the error of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestBuckets:
    """A bucket plan and the steps predicted with it and with the job's own buckets."""

    plan: BucketPlan
    planned: StepEstimate
    own: StepEstimate
    own_buckets: int

    @property
    def gain(self) -> float:
        """Fraction of the job's own step that the plan saves."""
        return 1 - self.planned.step_s / self.own.step_s

    @property
    def whole_buckets(self) -> bool:
        """Whether the trace holds whole buckets only, which cannot be split further."""
        return not self.plan.named and all(is_bucket(name) for b in self.plan.buckets for name in b.parameters)

    @property
    def worthwhile(self) -> bool:
        """Whether it saves at least 1 % of a step."""
        return self.gain >= WORTHWHILE


def best_for(job: Analysis, target: Target) -> BestBuckets:
    """Return the best buckets of an analysed job on a target set-up."""
    model = job.model(target.optimizer, target.parameters)
    own = job.links if target.latency_s is None else own_links(model.job, target.latency_s)
    _, fleet = fleet_of(model, target, own)
    return best_buckets(model.job, steps_of(model, fleet, settings_of(target)).setups)


def best_buckets(job: MeasuredJob, setups: Setups) -> BestBuckets:
    """Return the optimal merge of the job's gradients on the first of `setups`, with the steps predicted.

    Where it saves less than 1 % of a step the plan is the job's own buckets.
    """
    fabric, gpus = setups.fabrics[int(setups.fabric[0])], int(setups.gpus[0])
    if fabric is None or gpus < 2:
        raise InputError(
            "Buckets matter where several GPUs exchange gradients, and no link between them is known.",
            fields=("gpus", "network", "link", "machine"),
        )
    overlap = setups.overlap
    if overlap.scheme != "ddp":
        raise InputError(f"Only DDP has buckets to plan, not the overlap {overlap.scheme!r}.", fields=("overlap",))
    if overlap.sparse is not None or overlap.through != "all-reduce":
        raise InputError(
            "Buckets are planned for all-reduces of whole gradients, not for sparsified gradients (topk, gtopk) or "
            "parameter servers.",
            fields=("compress",),
        )
    gradients = merge.gradients_of(trace_of(job, setups))
    price = replace(fabric, gpus_per_node=int(setups.on_node[0])).prices(gpus).all_reduce
    runs = merge.optimal_merge(gradients, lambda size: price(size * overlap.compression))
    (own,) = step_estimates(job, setups)
    (best,) = step_estimates(job, replace(setups, overlap=replace(overlap, scheme="optimal")))
    own_runs = _own_runs(gradients, overlap)
    if best.step_s > (1 - WORTHWHILE) * own.step_s:
        runs, best = own_runs, own  # the model cannot distinguish the two
    alone_s = float(step_times(job, setups.on_one_gpu()).step_s[0])
    forecast = BucketForecast(planned_s=best.step_s, own_s=own.step_s, without_exchange_s=alone_s)
    return BestBuckets(
        plan=_plan(job, gradients, runs, gpus, forecast), planned=best, own=own, own_buckets=len(own_runs)
    )


def _own_runs(gradients: merge.Gradients, overlap: Overlap) -> merge.Merge:
    return merge.ddp_buckets(gradients, first_bytes=overlap.first_bucket_bytes, bucket_bytes=overlap.bucket_bytes)


def _plan(
    job: MeasuredJob, gradients: merge.Gradients, runs: merge.Merge, gpus: int, forecast: BucketForecast
) -> BucketPlan:
    names = [plain_name(job.trace.layers[index].name) for index in gradients.layers]
    return BucketPlan(
        source=job.name,
        gpus=gpus,
        buckets=tuple(
            GradientBucket(parameters=tuple(names[i] for i in run), bytes=sum(gradients.bytes[i] for i in run))
            for run in runs
        ),
        named=not any(map(is_unnamed, names)),
        forecast=forecast,
    )
