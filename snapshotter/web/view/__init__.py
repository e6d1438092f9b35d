"""What the pages show, as plain data: pure functions of reports, manifests and answers; no I/O, no HTML."""
