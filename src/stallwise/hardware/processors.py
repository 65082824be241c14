"""How fast CPUs launch kernels: single-thread speed of Python and torch's dispatcher by class of CPU.

Relative to server CPUs of 2021 and later (Ice Lake, Sapphire Rapids, Milan, Genoa). What launching costs follows the
speed of one core; ratios follow single-thread scores as remembered, confidence low. Virtual machines that hide what
they run on are a class of their own, by one of them (`fitting/own_steps.csv`).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuClass:
    """CPUs that launch about as fast as each other."""

    name: str
    launch_speed: float
    pattern: str


_CLASSES = (
    CpuClass(
        name="desktop of 2020 and later",
        launch_speed=1.4,
        pattern=r"Ryzen.* [5-9]\d{3}|Ryzen AI|i[3579]-1[1-9]\d{3}|Core.* Ultra|Apple M\d|Xeon w\d-[23]\d{3}",
    ),
    CpuClass(name="desktop before 2020", launch_speed=1.0, pattern=r"i[3579]-[4-9]\d{3}|i[3579]-10\d{3}|Ryzen"),
    CpuClass(
        name="server of 2021 and later",
        launch_speed=1.0,
        pattern=r"EPYC (?:7\w\w3|[489]\w\w[45])|(?:Platinum|Gold|Silver) [3-9][3-5]\d\d|"
        r"Grace|Neoverse-(?:V|N2)|Graviton[34]|Xeon 6",
    ),
    CpuClass(
        name="server of 2017 to 2020",
        launch_speed=0.7,
        pattern=r"EPYC \d|(?:Platinum|Gold|Silver|Bronze) [3-9][12]\d\d|Skylake|Cascade|Neoverse",
    ),
    CpuClass(
        name="virtual machine",
        launch_speed=0.56,
        pattern=r"^(?:Intel )?Xeon Processor$|^AMD EPYC Processor$|QEMU|KVM processor",
    ),
    CpuClass(name="server before 2017", launch_speed=0.55, pattern=r"E[357]-?\d{4}|Haswell|Broadwell|Sandy|Ivy|POWER"),
)

_BY_YEAR = ((2022, "server of 2021 and later"), (2017, "server of 2017 to 2020"), (0, "server before 2017"))
"""A GPU's usual host where nothing names it: servers are bought with CPUs of the GPU's own time."""
_DESKTOP_YEAR = 2020


def cpu_class(model: str) -> CpuClass | None:
    """The class of a CPU by its name as the system gives it; None where the name says too little."""
    plain = re.sub(r"\((?:R|TM)\)", "", model, flags=re.I)
    return next((one for one in _CLASSES if re.search(one.pattern, plain, re.I)), None)


def usual_cpu_class(gpu_year: int | None, *, consumer: bool = False) -> CpuClass:
    """The class of a GPU's usual host: a desktop for consumer cards."""
    name = next(name for year, name in _BY_YEAR if (gpu_year or 2020) >= year)
    if consumer:
        name = "desktop of 2020 and later" if (gpu_year or 2020) >= _DESKTOP_YEAR else "desktop before 2020"
    return next(one for one in _CLASSES if one.name == name)
