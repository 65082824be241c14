"""The host beside the device: the slower decides, and what was measured is found again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.hardware.processors import cpu_class, usual_cpu_class
from stallwise.model.compute.host import HostWork, device_alone_s, joined_s, launch_s, launching_s

SECONDS = st.floats(1e-5, 10.0)


@given(SECONDS, SECONDS)
def test_a_step_is_no_shorter_than_either_and_no_longer_than_both(device_s: float, host_s: float) -> None:
    step_s = joined_s(device_s, host_s)
    assert max(device_s, host_s) <= step_s * (1 + 1e-12)
    assert step_s <= device_s + host_s


@given(SECONDS, st.floats(0.3, 1.0))
def test_launching_is_found_again_from_a_step_and_its_device(step_s: float, busy: float) -> None:
    host_s = launching_s(step_s, busy * step_s)
    assert joined_s(busy * step_s, host_s) == pytest.approx(step_s)
    assert device_alone_s(step_s, host_s) == pytest.approx(busy * step_s)


@given(SECONDS, SECONDS, st.floats(1.0, 8.0))
def test_a_faster_device_is_never_slower_and_never_faster_than_launching(
    device_s: float, host_s: float, faster: float
) -> None:
    before, after = joined_s(np.array([device_s, device_s / faster]), np.array([host_s, host_s]))
    assert host_s * (1 - 1e-12) <= after <= before * (1 + 1e-12)


def test_compiling_launches_less_and_a_slower_cpu_takes_longer() -> None:
    eager = HostWork(operators=174, autocast=True)
    assert launch_s(HostWork(operators=174, compiled=True)) < launch_s(eager)
    assert launch_s(eager, 0.5) == pytest.approx(2 * launch_s(eager))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD EPYC 9654 96-Core Processor", "server of 2021 and later"),
        ("INTEL(R) XEON(R) PLATINUM 8558", "server of 2021 and later"),
        ("AMD EPYC 7R32", "server of 2017 to 2020"),
        ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "server of 2017 to 2020"),
        ("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", "server before 2017"),
        ("AMD Ryzen Threadripper PRO 5975WX 32-Cores", "desktop of 2020 and later"),
        ("Intel(R) Xeon(R) Processor", "virtual machine"),
        ("AMD EPYC Processor", "virtual machine"),
        ("Intel Xeon Processor (Skylake, IBRS)", "server of 2017 to 2020"),
        ("Intel(R) Core(TM) i7-7700 CPU @ 3.60GHz", "desktop before 2020"),
    ],
)
def test_classes_of_cpus(model: str, name: str) -> None:
    found = cpu_class(model)
    assert found is not None
    assert found.name == name


def test_a_name_that_says_too_little_has_no_class() -> None:
    assert cpu_class("AMD EPYC") is None
    assert usual_cpu_class(2024).launch_speed > usual_cpu_class(2014).launch_speed
