"""Objects of a store: opening it (`store`), indexing it (`index`), reading one object (`fetch`), reading from a helper
process (`helper`).
"""
