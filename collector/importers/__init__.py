"""What enters the store from files: other tools' traces."""
