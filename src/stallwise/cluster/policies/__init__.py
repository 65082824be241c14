"""Scheduling policies.

| module                               | contents                                                                  |
| ------------------------------------ | ------------------------------------------------------------------------- |
| base                                 | `Policy`: five seams (admission, order, placement, patience, preemption)  |
| catalog                              | policies by name, with options; `policy_named`                            |
| _user                                | policies that a user writes in Python                                     |
| _tuner                               | Dally's patience, learned from past waits                                 |
| _gangs                               | what a rule over fixed gangs sees, and where gangs of a round are placed  |
| _programs, _gavel, _themis, _adadual | rules over fixed gangs, computed round by round                           |
| _elastic                             | what a rule over jobs that grow and shrink sees, and their configurations |
| _goodput, _optimus, _pollux, _sia    | rules over such jobs                                                      |
"""

from stallwise.cluster.policies._user import ClusterView, JobView
from stallwise.cluster.policies.base import Policy
from stallwise.cluster.policies.catalog import policy_named, policy_of

__all__ = ["ClusterView", "JobView", "Policy", "policy_named", "policy_of"]
