"""Views: what a person sees. Figures, pages and reports over the two services' HTTP APIs."""
