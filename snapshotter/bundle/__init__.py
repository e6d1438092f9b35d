"""What a capture leaves behind: the stored bundle, its index, and how long both are kept."""
