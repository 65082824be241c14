"""Shrinking virtual machines and pods instead of preempting them (Fuerst et al., HPDC 2020), and what it gains.

| module         |                                                                              |
| algebra        | who gives how much of one resource, and gets it back                         |
| resources      | amounts of five resources, machines that come and go, hosts                   |
| placement      | which host suits, and whether it may take one more                           |
| pricing        | three ways to charge for a machine that may shrink                           |
| simulator      | machines through a fleet, event by event                                     |
| overcommitment | smaller and smaller fleets, rule beside rule, preemption beside them          |
| feasibility    | how often machines use more than a deflated size would leave them            |
| traces         | which file is what; `azure` and `alibaba` read theirs, `usage` use over time |
| drawing        | what a trace does not say                                                    |
"""
