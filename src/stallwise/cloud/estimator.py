"""A time estimator for SkyPilot's in-process optimizer, which takes every task to last an hour unless told otherwise.

    task = sky.Task.from_yaml("task.yaml")
    task.set_time_estimator(estimator(subject, wish, catalog))
    sky.optimize(dag, minimize=sky.OptimizeTarget.COST)

It answers for any resources the optimizer asks about: by instance type where they name one, else by GPU and count.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stallwise.cloud.bids import job_columns
from stallwise.cloud.fleets import Fleets, shapes_of
from stallwise.cloud.speed import speeds
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.instance import Instance

Resources = Any
"""sky.Resources; SkyPilot is not needed to import this."""


def estimator(subject: Subject, wish: Wish, catalog: Catalog, nodes: int = 1) -> Callable[[Resources], float]:
    """Seconds of the job on `nodes` machines of the resources asked about; an `InputError` where it cannot be told."""

    def seconds(resources: Resources) -> float:
        return job_s(subject, wish, _instance(catalog, resources), nodes)

    return seconds


def job_s(subject: Subject, wish: Wish, instance: Instance, nodes: int) -> float:
    """From the order to the end, on whole machines."""
    shapes, _, unjudged = shapes_of(subject, [instance], wish.machines)
    if not shapes:
        raise InputError(next(iter(unjudged.values())))
    if nodes > 1 and not shapes[0].networked:
        raise InputError(f"The catalog lists no network of {instance.name}, so {nodes} of them cannot be judged.")
    one = np.ones(1, dtype=np.int64)
    fleet = Fleets(shapes=shapes, shape=0 * one, used=instance.gpu_count * one, nodes=nodes * one)
    found = speeds(subject, fleet, scale_batch=wish.scale_batch, workers=wish.workers, data_bytes=wish.data_bytes)
    if not found.fits[0]:
        raise InputError(f"The job does not fit on {nodes} × {instance.name}.")
    batch = subject.samples * found.batch * fleet.gpus
    return float(wish.provision_s + wish.startup_s + job_columns(found.step_s, found.cold_s, batch, wish)[0])


def _instance(catalog: Catalog, resources: Resources) -> Instance:
    cloud = str(resources.cloud).lower() if resources.cloud is not None else None
    if resources.instance_type is not None:
        return catalog.instance(resources.instance_type, cloud)
    label, count = next(iter((resources.accelerators or {}).items()), (None, 0))
    gpu = catalog.gpu_of_label(label, cloud) if label else None
    for instance in catalog.instances.values():
        if instance.gpu == gpu and instance.gpu_count == count and cloud in (None, instance.cloud):
            return instance
    raise InputError(f"The catalog has no instance type with {count:g} × {label}, so its time cannot be told.")
