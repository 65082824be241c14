"""Loading before a sample is needed: `order` (which samples come), `ahead` (threads that load them), `pace` (how many
at once), `loading` (one process's path from object to sample).
"""
