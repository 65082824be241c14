"""What a machine can do, measured without a job of the user's.

probe              torch, networks, Slurm, and how much slower busy cores are (CPUs and GPUs: `record.node`)
doctor             which features of Stallwise this machine supports, and what the others lack
characterize       disk, image decoding, GPUs and links into one machine record; `device` measures the GPUs
links, link_rank   all-reduces over message sizes, and the line fitted to them; the ranks that time them
study              stalls of many networks on links of several rates, fitted to features of the networks;
                   `_study_hosts` shapes the links, `study_rank` runs the networks
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.machine.characterize import CharacterizeRequest, characterize_machine
    from stallwise.machine.doctor import Diagnosis, diagnose
    from stallwise.machine.links import LinkProbe, ProbeProgress, run_probe
    from stallwise.machine.probe import measure_crowding
    from stallwise.machine.study import Study, StudySettings, read_study, run_study

__all__ = [
    "CharacterizeRequest",
    "Diagnosis",
    "LinkProbe",
    "ProbeProgress",
    "Study",
    "StudySettings",
    "characterize_machine",
    "diagnose",
    "measure_crowding",
    "read_study",
    "run_probe",
    "run_study",
]

__getattr__ = loader(
    __name__,
    {
        "CharacterizeRequest": "characterize",
        "Diagnosis": "doctor",
        "LinkProbe": "links",
        "ProbeProgress": "links",
        "Study": "study",
        "StudySettings": "study",
        "characterize_machine": "characterize",
        "diagnose": "doctor",
        "measure_crowding": "probe",
        "read_study": "study",
        "run_probe": "links",
        "run_study": "study",
    },
)
