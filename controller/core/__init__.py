"""Pure decisions: frozen snapshot in, frozen plan out. No clock, no I/O, no chance of its own."""
