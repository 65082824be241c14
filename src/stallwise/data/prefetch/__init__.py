"""Loading before a sample is needed: `order` (which samples come), `_ahead` (threads that load them), `_pace` (how many
at once), `_loading` (one process's path from object to sample).
"""
