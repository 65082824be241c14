"""`Analysis`: a run that was opened, and everything that follows from it, each worked out once.

job = open_run("runs/train")
job.split, job.bottleneck
job.on(gpu="H100", gpus=8).step_s
"""

import threading
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stallwise.analysis.bottleneck import Bottleneck
from stallwise.analysis.compare import PhaseSummary, RunSummary, summarise
from stallwise.analysis.job import JobModel, bare_model, job_of, job_of_layers, layered_model, model_of_job, source_gpu
from stallwise.analysis.prediction import Prediction, predict
from stallwise.analysis.profile import Detail, GradientNoise, Profile, detail_of, profile_of
from stallwise.analysis.split import Split, StepMeasurement, measure
from stallwise.analysis.target import Target
from stallwise.errors import InputError, StallwiseError
from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.hardware.gpu import Gpu
from stallwise.model.step.job import MeasuredJob, OwnLinks, own_links
from stallwise.run import phases
from stallwise.run.manifest import NO_PREDICTION
from stallwise.run.reader import Run
from stallwise.workload.layers import LayerTrace


@dataclass(frozen=True, eq=False)
class Analysis:
    """A measured job: a run on disk, or a job that is known by its layers alone. Safe to share between threads.

    Examples:
        >>> import stallwise
        >>> job = stallwise.open_run("examples/runs/images")
        >>> job.bottleneck.binds, job.bottleneck.candidates
        ('inconclusive', ('interconnect', 'prep'))
        >>> part = job.split.interconnect
        >>> f"{part.s:.4f} s, {part.low_s:.4f} to {part.high_s:.4f} s"
        '0.0546 s, 0.0006 to 0.1258 s'
    """

    source: Path
    record: Run | None = None
    layers: LayerTrace | None = None
    bare_job: MeasuredJob | None = None
    """A job without any file behind it."""
    own_catalog: Catalog | None = None
    _models: dict[tuple[str, float | None], JobModel] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def run(self) -> Run:
        """The run record; an `InputError` where there is none."""
        if self.record is None:
            raise InputError(f"{self.source} is a layer file, not a run.")
        return self.record

    @cached_property
    def catalog(self) -> Catalog:
        """GPUs, instance types and prices."""
        return self.own_catalog or load_catalog()

    @cached_property
    def measured(self) -> StepMeasurement:
        """The step taken apart; a `RunError` where some phase was not measured."""
        return measure(self.run)

    @property
    def split(self) -> Split:
        """Seconds of a step by part, with intervals."""
        return self.measured.split

    @cached_property
    def profile(self) -> Profile:
        """Everything that a profile shows."""
        return profile_of(self.run, self.measured)

    @cached_property
    def noise(self) -> GradientNoise | None:
        """The gradient noise scale of the run; None where it was not measured."""
        return None if self.record is None else self.profile.noise

    @property
    def bottleneck(self) -> Bottleneck:
        """Which part limits the step, and what would remove it."""
        return self.profile.verdict

    @cached_property
    def summary(self) -> RunSummary:
        """What was run, where, and the time of each phase."""
        return summarise(self.run)

    @cached_property
    def detail(self) -> Detail:
        """Each rank's own times, and when each gradient is ready."""
        return detail_of(self.run, self._own_schedule)

    @property
    def as_is(self) -> PhaseSummary | None:
        """The phase in which the script runs as it is, or any that was measured."""
        timed = [phase for phase in self.summary.phases if phase.step_s is not None]
        return next((phase for phase in timed if phase.name == phases.AS_IS), timed[0] if timed else None)

    @property
    def epoch_samples(self) -> int | None:
        """Samples of one epoch of the training data, as the run recorded them."""
        return None if self.record is None else self.record.manifest.counts.epoch_samples

    @cached_property
    def job(self) -> MeasuredJob:
        """The job as the model takes it; an `InputError` where the run lacks layers or gradients."""
        if self.bare_job is not None:
            return self.bare_job
        if self.layers is not None:
            return job_of_layers(self.layers)
        return job_of(self.run, self.profile, self.measured)

    @cached_property
    def links(self) -> OwnLinks:
        """The links that the job was measured on."""
        return own_links(self.model().job)

    def model(self, optimizer: str = "adam", parameters: float | None = None) -> JobModel:
        """Everything that predictions are made from; `parameters` helps where the run did not count them."""
        key = (optimizer, parameters)
        with self._lock:
            if key not in self._models:
                self._models[key] = self._model(optimizer, parameters)
            return self._models[key]

    def on(self, target: Target | None = None, *, curve: bool | None = False, **options: Any) -> Prediction:
        """Predict the job on a set-up: the only way from a run and a target to a step time.

        What is not specified stays as measured, per GPU.

        Args:
            target: The set-up.
            curve: Also predict other numbers of GPUs; None: where their links are known.
            options: Fields of `Target` instead of one, or over it; `gpu` and `instance` may be names of the catalog.

        Returns:
            The step in seconds with its interval, its parts, memory in bytes, and what was assumed.

        Raises:
            InputError: The set-up is impossible, a link of it is not known, or the run lacks layers.

        Examples:
            >>> import stallwise
            >>> job = stallwise.open_run("examples/runs/slow-data-fixed")
            >>> prediction = job.on(gpu="H100", gpus=1, workers="auto", cores=16)
            >>> f"{prediction.step_s:.5f} s, {prediction.low_s:.5f} to {prediction.high_s:.5f} s"
            '0.00343 s, 0.00237 to 0.00494 s'
        """
        setup = replace(target or Target(), **self._resolved(options))
        own = self.links if setup.latency_s is None else own_links(self.model().job, setup.latency_s)
        model = self.model(setup.optimizer, setup.parameters)
        if setup.memory_bytes is not None and setup.dataset_bytes is None and model.bytes_per_sample:
            samples = self.epoch_samples
            setup = replace(setup, dataset_bytes=None if samples is None else samples * model.bytes_per_sample)
        return predict(model, setup, own, curve=curve)

    def target(self, **options: Any) -> Target:
        """A `Target` with names of the catalog resolved."""
        return Target(**self._resolved(options))

    def _resolved(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options with names looked up in the catalog."""
        resolved = dict(options)
        if isinstance(gpu := options.get("gpu"), str):
            resolved["gpu"] = self.catalog.gpu(gpu)
        if isinstance(instance := options.get("instance"), str):
            resolved["instance"] = self.catalog.instance(instance)
        return resolved

    def _model(self, optimizer: str, parameters: float | None) -> JobModel:
        if self.record is None:
            return model_of_job(self.job)
        source, no_transfer = self._source()
        record = self.run.manifest.model
        if record is not None and self.run.table("gradients").height and self._is_measured():
            return layered_model(self.run, self.job, self.measured, source, optimizer, no_transfer)
        if source is None or any(note.startswith(NO_PREDICTION) for note in self.run.manifest.notes):
            _ = self.job  # says what the run lacks
        return bare_model(self.run, self.as_is, source, optimizer, parameters)

    def _is_measured(self) -> bool:
        try:
            return self.measured is not None
        except StallwiseError:
            return False

    def _source(self) -> tuple[Gpu | None, str]:
        """The run's own GPU, or why it cannot be held against another one."""
        try:
            return source_gpu(self.run.manifest, self.catalog), ""
        except InputError as error:
            return None, str(error)

    def _own_schedule(self) -> Any:
        if self.model().gpus > 1 and self.links == OwnLinks():
            return None
        return self.on().schedule


def open_run(source: str | Path | Run, catalog: Catalog | None = None) -> Analysis:
    """Open the folder of a run, or a layer file of another tool; an error says in one sentence why it cannot be."""
    if isinstance(source, Run):
        return Analysis(source.path, record=source, own_catalog=catalog)
    path = Path(source)
    if path.is_file():
        from stallwise.run.traces import read_layers

        return Analysis(path, layers=read_layers(path), own_catalog=catalog)
    return Analysis(path, record=Run.open(path), own_catalog=catalog)


def analysis_of(job: MeasuredJob, catalog: Catalog | None = None) -> Analysis:
    """The analysis of a job that is known by its layers alone."""
    return Analysis(Path(job.trace.source), bare_job=job, own_catalog=catalog)
