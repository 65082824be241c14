"""The simulation engine: what a policy's seams mean over arrays of state, compiled, and the loop from event to event.

| module     | contents                                                                   |
| ---------- | -------------------------------------------------------------------------- |
| compile    | numba's njit, with compiled code kept on disk                              |
| state      | the arrays: parameters, jobs, topology, loop state; codes and events       |
| build      | from policies, jobs and clusters to these arrays                           |
| _topology  | which GPUs: search, take and give back over the tree                       |
| _queue     | which job first, and how patient it is                                     |
| _placement | a job gets GPUs, gives them back, moves, shares, shrinks                   |
| events     | the heap; what is planned; what happens: ends, leases, queues, arrivals    |
| _decide    | one pass over the queue                                                    |
| _loop      | speeds of running jobs; one moment, and time from moment to moment         |
| _answers   | what Python answers the loop: speeds of new shapes, memory, a user's order |
| _rounds    | policies that compute allocations round by round                           |
| _deadlines | of these, those that serve deadlines: ElasticFlow, earliest first          |

Kernels take `params` (the policy and costs as numbers), `jobs` (one row each), `topology` (GPUs and the tree above
them) and `state` (queue, events, clock). numba loads with them, so nothing imports them before it is needed; `state`,
`build`, `_answers` and `_rounds` do without.
"""
