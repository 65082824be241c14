"""Every study by name: what is left out and scored, what is fitted on everything and shipped."""

from collections.abc import Callable
from pathlib import Path

from fitting.layouts import layout_study
from fitting.own_steps import own_steps_study
from fitting.study import Study
from fitting.study_images import image_study
from fitting.study_networks import network_study
from fitting.study_others import cmdare_study, gavel_study, llm_study, node_study, transfer_study

STUDIES: dict[str, Callable[[Path], Study]] = {
    "network": network_study,
    "transfer": transfer_study,
    "gavel": gavel_study,
    "nodes": node_study,
    "cmdare": cmdare_study,
    "llm": llm_study,
    "layout": layout_study,
    "own_steps": own_steps_study,
    "image_infer": lambda folder: image_study(folder, training=False),
    "image_train": lambda folder: image_study(folder, training=True),
}
