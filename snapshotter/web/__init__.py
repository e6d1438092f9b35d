"""HTTP: the Alertmanager webhook, the JSON API, the pages and health. Asks `tasks` and `bundle` alone."""
