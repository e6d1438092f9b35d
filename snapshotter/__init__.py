"""The snapshotter: takes the stacks of a whole job, merges them, says who is to blame, shows it on a page."""

__version__ = "0.1.0"
