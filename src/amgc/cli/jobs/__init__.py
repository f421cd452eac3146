"""Parallel runs of `amgc compare`: the grid of runs, the scheduler, the executors and the workers."""

GRID = "compare.json"  # the file of a comparison, in its folder
