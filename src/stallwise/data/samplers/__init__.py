"""Samplers: `_lookahead` announces the order to the dataset, `_sticky` keeps samples on the same node, `_importance`
draws by weight.
"""
