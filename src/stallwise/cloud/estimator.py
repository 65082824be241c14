"""A time estimator for SkyPilot's in-process optimizer, which takes every task to last an hour unless told otherwise.

    task = sky.Task.from_yaml("task.yaml")
    task.set_time_estimator(estimator(subject, wish, catalog))
    sky.optimize(dag, minimize=sky.OptimizeTarget.COST)

It answers for any resources the optimizer asks about: by instance type where they name one, else by GPU and count.
"""

import re
from collections.abc import Callable
from dataclasses import replace
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
from stallwise.units import GIB

_N1_GIB_PER_VCPU = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
"""Google's N1 machines (its documentation of machine families)."""
Resources = Any
"""sky.Resources; SkyPilot is not needed to import this."""


def estimator(subject: Subject, wish: Wish, catalog: Catalog, nodes: int = 1) -> Callable[[Resources], float]:
    """Seconds of the job on `nodes` machines of the resources asked about; an `InputError` where it cannot be told."""

    def seconds(resources: Resources) -> float:
        return job_s(subject, wish, _instance(catalog, resources), nodes)

    return seconds


def job_s(subject: Subject, wish: Wish, instance: Instance, nodes: int) -> float:
    """From the order to the end, on whole machines."""
    shapes, _, unjudged = shapes_of(subject, [instance], wish.machines, wish.here)
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
    name = resources.instance_type
    label, count = next(iter((resources.accelerators or {}).items()), (None, 0))
    if name is not None and (label is None or (cloud or "gcp", name) in catalog.instances):
        return catalog.instance(name, cloud)
    gpu = catalog.gpu_of_label(label, cloud) if label else None
    alike = [
        instance
        for instance in catalog.instances.values()
        if instance.gpu == gpu and instance.gpu_count == count and cloud in (None, instance.cloud)
    ]
    named = [instance for instance in alike if name in (instance.name, instance.name.partition("+")[0])]
    if not alike:
        raise InputError(f"The catalog has no instance type with {count:g} × {label}, so its time cannot be told.")
    if named or name is None:
        return (named or alike)[0]
    attached = next((instance for instance in alike if "+" in instance.name), None)
    return catalog.instance(name, cloud) if attached is None else _on_host(attached, name)


def _on_host(instance: Instance, host: str) -> Instance:
    """Google attaches GPUs to any N1 host: the same GPUs on another one, whose name says how large it is."""
    found = re.fullmatch(r"n1-(standard|highmem|highcpu)-(\d+)", host)
    if found is None:
        return instance
    vcpus = int(found[2])
    return replace(instance, name=host, vcpus=vcpus, memory_bytes=int(_N1_GIB_PER_VCPU[found[1]] * vcpus * GIB))
