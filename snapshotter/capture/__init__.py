"""Taking stacks: one process (pyspy), one node (node), all nodes (fanout), and the agent on each node."""
