"""An emulated SGLang engine with its own truth, in real time times a speed."""
