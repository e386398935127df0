"""Pages: each asks its questions, places its figures, and keeps its selection in the URL."""
