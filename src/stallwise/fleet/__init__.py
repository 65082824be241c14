"""Machines rented for a job, replaced when they are lost, and settled at the end.

plan        what is to be rented, and what was predicted of it
_backend    what is asked of a cloud; its errors by name; calls with a time limit
market      availability, prices, boot times and lives of machines, replayed from a trace
_local      machines as processes on this computer; _machine is one of them
state       the manager's database: every transition a transaction
_forecast   end, dollars, whether a replacement pays, when to go to on-demand
jobs        the elastic job on the machines, and a stand-in for rehearsals
manager     observes, decides, orders and stops, until nothing runs any more
rehearsal   a plan carried out in simulated time
ledger      predictions beside what came of them; the receipt of a job
"""
