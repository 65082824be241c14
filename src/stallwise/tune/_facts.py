"""The facts of a profiled job from which settings are proposed."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from stallwise.analysis.analysis import Analysis
from stallwise.analysis.loading import LoaderSetting, LoadingFacts, loading_facts
from stallwise.analysis.profile import Profile
from stallwise.errors import InputError
from stallwise.model.step.job import MeasuredJob
from stallwise.tune.knobs import Knobs, LoaderFacts, OptimizerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts(LoadingFacts):
    """A profiled job and the loader that feeds it."""

    profile: Profile
    loader: LoaderFacts | None
    """None where its steps use no DataLoader."""
    job: MeasuredJob | None
    """As `whatif` takes it; None where too little was measured for it."""
    optimizer: OptimizerFacts | None = None
    """None where no step was timed."""

    def setting_of(self, knobs: Knobs) -> LoaderSetting:
        """The loader's setting with those of `knobs` in place of its own."""
        now = self.setting
        return LoaderSetting(
            num_workers=now.num_workers if knobs.num_workers is None else knobs.num_workers,
            prefetch_factor=knobs.prefetch_factor or now.prefetch_factor,
            persistent_workers=bool(knobs.persistent_workers or now.persistent_workers),
        )


def job_facts(
    analysis: Analysis,
    loaders: tuple[LoaderFacts, ...],
    crowding: Callable[[int], float] = lambda _: 1.0,
    optimizer: OptimizerFacts | None = None,
) -> JobFacts:
    """Collect the facts of an analysed job; `crowding` is called with the cores of a node."""
    loader = max((one for one in loaders if one.steps), key=lambda one: one.steps, default=None)
    known = loading_facts(analysis.run, analysis.measured)
    cores = min((node.cores for node in analysis.profile.nodes if node.cores), default=None)
    if loader is not None:
        setting = LoaderSetting(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 2,
            persistent_workers=loader.persistent_workers,
        )
        known = replace(known, setting=setting, epoch_batches=loader.length)
    known = replace(known, crowding=crowding(cores) if cores and loader is not None else 1.0)
    return JobFacts(
        **{field.name: getattr(known, field.name) for field in fields(LoadingFacts)},
        profile=analysis.profile,
        loader=loader,
        job=_job(analysis),
        optimizer=optimizer,
    )


def _job(analysis: Analysis) -> MeasuredJob | None:
    try:
        return analysis.job
    except InputError:
        return None
