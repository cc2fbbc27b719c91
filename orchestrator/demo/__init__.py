"""The demonstration: a real pipeline on a real text, told over the public API alone."""
