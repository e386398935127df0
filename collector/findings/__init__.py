"""Rules that state a diagnosis in one sentence, with its numbers and the knob."""
