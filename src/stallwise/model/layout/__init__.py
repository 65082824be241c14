"""Steps of transformers under a parallel layout: time and memory.

columns   set-ups as columns
step      seconds of a step
memory    peak bytes of the fullest GPU
"""
