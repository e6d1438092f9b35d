"""Following training logs: which files, how they are read, and what their records say."""
