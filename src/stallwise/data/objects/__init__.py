"""Objects of a store: opening it (`store`), indexing it (`index`), reading one object (`_fetch`), reading from a helper
process (`helper`).
"""
