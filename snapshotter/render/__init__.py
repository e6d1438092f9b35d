"""One output format a module; each takes a merged tree or a report and returns text."""
