"""Reports about one trajectory or many, as files that need no network."""
