"""Facts: what happened. Receives OpenTelemetry spans, keeps them in DuckDB, answers about them."""
