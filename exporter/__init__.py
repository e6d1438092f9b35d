"""The node's exporter: reads logs, /proc and NCCL RAS of one node and serves what it saw as metrics.

It never writes to the node and never imports `snapshotter`.
"""

__version__ = "0.1.0"
