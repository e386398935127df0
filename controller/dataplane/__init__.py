"""The path of a request: whose it is, where it goes, what comes back."""
