"""What to rent: a measured job on every fleet that can be rented, priced, and the one that meets a deadline or a
budget.

    request.py       what is asked: `RecommendRequest`, discounts and quotas
    bids.py          fleets joined with offers as columns; which keep the limits, and the best
    losses.py        bids on spot machines after losses (`spot/plan`)
    options.py       a bid in full, and staying on the run's own machine
    recommend.py     the whole recommendation
    layouts.py       the same for a transformer that was not run: fleets and layouts
    _explanation.py  its sentences: answer, reasons, warnings, assumptions, alternatives
    handover.py      SkyPilot, torchrun and Slurm
    measured.py      the best of measured configurations (Stash's recommender)
    instances.py     listed instance types under networks (Stash's study without machines)
    study.py         machine records compared on standard networks (Stash's study)

Seconds come from `model/` (the same graph as in `whatif` and `predict`), lifetimes from `spot/`, prices from
`hardware/`.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.cloud.handover import estimator
    from stallwise.cloud.recommend import Recommendation
    from stallwise.cloud.request import RecommendRequest, SpotTerms

__all__ = ["RecommendRequest", "Recommendation", "SpotTerms", "estimator"]

__getattr__ = loader(
    __name__,
    {
        "RecommendRequest": "request",
        "Recommendation": "recommend",
        "SpotTerms": "request",
        "estimator": "handover",
    },
)
