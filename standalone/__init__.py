"""The four programs together on one machine: exporter, snapshotter, Prometheus and Alertmanager.

`make run` is the embedded default for a node without a monitoring stack; the demo and the end-to-end tests
start the same chain with shorter intervals.
"""
