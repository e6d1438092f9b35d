"""One module per subject; each turns published data into metric families built fresh at every scrape."""
