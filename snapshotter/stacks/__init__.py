"""Pure functions over stacks: rank sets, the merged tree, equivalence classes, the verdict and the report.

Imports the standard library alone: no I/O, no clock, no configuration files.
"""
