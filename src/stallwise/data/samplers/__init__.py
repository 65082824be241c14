"""Samplers: `lookahead` announces the order to the dataset, `sticky` keeps samples on the same node, `importance` draws
by weight.
"""
