"""Named questions to the store, one module a page, each answering with a table."""
