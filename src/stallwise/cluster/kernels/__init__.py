"""Decisions and time, compiled: what a policy's seams mean over arrays of state, and the simulator's event loop.

| module     |                                                     |
| state      | the arrays                                          |
| space      | which GPUs                                          |
| ranking    | who first                                           |
| waiting    | how patient                                         |
| holding    | a job gets its GPUs and gives them back             |
| placing    | GPUs for one job                                    |
| moving     | running jobs move, two share                        |
| deciding   | one pass over the queue                             |
| heap       | events in order of time                             |
| events     | what is planned to happen                           |
| happening  | what happens: ends, leases, queues, arrivals        |
| speeds     | how fast a job runs where it is                     |
| running    | one moment, and time from moment to moment          |
| shares     | who gives how much of a resource; plain Python      |
| hosting    | machines on hosts: the other simulator on the heap  |

Numba loads with these modules, so nothing imports them before it is needed.
"""
