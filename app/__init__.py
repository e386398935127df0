"""Assembly: commands, settings, processes and benches; the only room that knows every other."""
