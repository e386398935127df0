"""The product measures itself: one module a bench, each figure with its target."""
