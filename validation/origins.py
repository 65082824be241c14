"""Where each published figure comes from, who computes ours, and whether agreeing says anything.

One table for all cases, read from the top: the first rule whose id and pattern fit a case is its rule. Only rows whose
figure somebody else published, that the package itself computes, from inputs that do not contain the answer, and whose
tolerance and method stood before anybody had looked, count as evidence (`Evidence.counts`). A miss counts whatever the
row is worth (`Evidence.counts_off`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from validation.harness import Case

Origin = Literal["paper", "authors' data", "peer's program", "own"]
"""A paper's text or table; what follows from its authors' data; a peer's program that was run; our own number."""

Computation = Literal["package", "one line", "other code"]
"""The package; a ratio, a product or a fitted line of it; no code of the package."""

Weakness = Literal["", "transcription", "identity", "chosen on it", "changed after a look"]
"""The shipped table is a copy of the source; true by definition or by a unit; the model was chosen so that it fits; the
tolerance, the method or the row was written after our value had been seen (a tolerance that became narrower is no such
change)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a row of the report is worth."""

    origin: Origin
    computation: Computation = "package"
    weakness: Weakness = ""

    @property
    def counts(self) -> bool:
        """Whether agreement is evidence for the package."""
        return self.origin != "own" and self.computation == "package" and not self.weakness

    @property
    def counts_off(self) -> bool:
        """Whether a miss is evidence against it: also where agreement would have proved little."""
        return self.origin != "own" and self.computation != "other code"


@dataclass(frozen=True, slots=True)
class Rule:
    """The evidence of the cases whose id is listed and whose text contains the pattern."""

    ids: str
    evidence: Evidence
    pattern: str = ""

    def fits(self, case: Case) -> bool:
        """Whether this rule is about the case."""
        return case.id in self.ids.split() and re.search(self.pattern, case.case) is not None


RULES = (
    Rule("catalog-1 catalog-2", Evidence("authors' data", weakness="transcription")),
    Rule("catalog-3", Evidence("authors' data")),
    Rule("cluster-V1 cluster-V2 cluster-V3 cluster-V4", Evidence("peer's program")),
    Rule("cluster-V7", Evidence("peer's program", weakness="changed after a look"), "by its own two means"),
    Rule("cluster-V9", Evidence("peer's program", weakness="changed after a look"), "not known"),
    Rule("cluster-V6 cluster-V7 cluster-V8 cluster-V9", Evidence("peer's program")),
    # Within a tolerance of 0.05 any efficiency near 0 agrees.
    Rule("cluster-V10", Evidence("peer's program", weakness="identity"), "(MobileNetV3|ResNet18), 8 GPU over 2 racks"),
    Rule("cluster-V10", Evidence("peer's program", weakness="identity"), "MobileNetV3, 32 GPU"),
    Rule("cluster-V10", Evidence("peer's program")),
    # First with chunks of iterations, whose length was settled after an ordering had failed; now leases end on time.
    Rule("cluster-V11", Evidence("paper", weakness="changed after a look")),
    Rule("cluster-V14", Evidence("paper")),
    Rule("cluster-V12 cluster-V13", Evidence("paper", weakness="identity")),
    # Rows on these traces were written after a first look at ours.
    Rule(
        "cluster-V17", Evidence("paper", weakness="changed after a look"), "195job|cluster10|elasticflow, cluster0[16]"
    ),
    Rule("cluster-V17 cluster-V20", Evidence("paper")),
    Rule("cluster-V18", Evidence("peer's program", weakness="changed after a look")),
    Rule("cluster-V19", Evidence("paper", weakness="changed after a look")),
    Rule("graph-V2", Evidence("paper"), "gain"),
    Rule("graph-V1 graph-V2", Evidence("authors' data")),
    Rule("graph-V3 graph-V4", Evidence("own")),
    Rule("graph-V5 graph-V6 graph-V7 graph-V10 graph-V11", Evidence("authors' data")),
    Rule("graph-V8", Evidence("authors' data", weakness="identity"), "number of buckets"),
    Rule("graph-V8", Evidence("authors' data")),
    Rule("graph-V9", Evidence("own")),
    Rule("graph-V12", Evidence("own"), "whole file"),
    Rule("graph-V12", Evidence("peer's program")),
    # One trial had missed a figure; the mean of three was taken afterwards.
    Rule("loading-1", Evidence("authors' data", weakness="changed after a look")),
    Rule("loading-2", Evidence("own")),
    Rule("loading-13", Evidence("own", weakness="identity")),
    Rule("spot-V1", Evidence("own", "other code"), "SVR RBF"),
    Rule("spot-V1 spot-V5 spot-V6", Evidence("paper", "other code")),
    Rule("spot-V1b", Evidence("own", "other code")),
    Rule("spot-V2 spot-V3", Evidence("own", "other code"), "never seen|Weight File Size"),
    Rule("spot-V2 spot-V3", Evidence("paper", "other code")),
    Rule("spot-V4", Evidence("authors' data", "one line")),
    Rule("spot-V8", Evidence("paper", "other code"), "gain of a second server"),
    Rule("spot-V7 spot-V8", Evidence("paper", "one line")),
    Rule("spot-V9", Evidence("paper", "other code"), "published estimates against measured"),
    Rule("spot-V9", Evidence("own", "one line", "changed after a look"), "largest distance"),
    Rule("spot-V9", Evidence("own", "one line")),
    Rule("spot-V10 spot-V11 spot-V12", Evidence("authors' data", weakness="transcription")),
    Rule("spot-V13", Evidence("paper", "other code", "changed after a look")),
    Rule("spot-V14", Evidence("paper", "one line"), "saving"),
    Rule("spot-V14", Evidence("paper", "other code")),
    Rule("spot-V15", Evidence("paper", "one line", "changed after a look"), "dollars"),
    Rule("spot-V15", Evidence("paper", "other code")),
    Rule("spot-V16", Evidence("own", "one line", "changed after a look")),
    Rule("spot-V17", Evidence("paper", "one line"), "dearer"),
    Rule("spot-V17", Evidence("paper", "other code")),
    Rule("spot-V18", Evidence("own"), "717 losses: [Aτb]"),
    Rule("spot-V18", Evidence("paper")),
    Rule("spot-V19", Evidence("paper", "one line"), "a 10 h job"),
    Rule("spot-V19", Evidence("own", "one line")),
    Rule("spot-V20", Evidence("paper"), "first interval|never shrink|as published$"),
    Rule("spot-V20 spot-V21", Evidence("own")),
    Rule("spot-V22 spot-V23", Evidence("paper", "other code", "identity")),
    Rule("spot-V24", Evidence("paper"), "median"),
    Rule("spot-V24", Evidence("own")),
    Rule("spot-V25", Evidence("paper")),
    Rule("spot-V26", Evidence("paper", weakness="identity")),
    Rule("spot-V28", Evidence("own")),
    Rule("stash-2 stash-3 stash-7 stash-9", Evidence("paper", weakness="chosen on it")),
    Rule("stash-1 stash-6 stash-10 stash-19 stash-22 stash-23", Evidence("paper", weakness="identity")),
    Rule("stash-14", Evidence("paper", weakness="identity"), "prepared once for all"),
    # Our values were known when the tolerances were set.
    Rule("stash-4 stash-5 stash-8 stash-13 stash-14", Evidence("paper", weakness="changed after a look")),
    Rule("stash-11 stash-12 stash-20", Evidence("paper")),
)


def evidence_of(case: Case) -> Evidence:
    """The evidence of the first rule that fits; a LookupError where none does."""
    for rule in RULES:
        if rule.fits(case):
            return rule.evidence
    raise LookupError(f"validation/origins.py has no rule for {case.id}: {case.case}")


def unused_rules(cases: Iterable[Case]) -> list[Rule]:
    """Rules that are the first to fit no case."""
    used = {next((number for number, rule in enumerate(RULES) if rule.fits(case)), -1) for case in cases}
    return [rule for number, rule in enumerate(RULES) if number not in used]
