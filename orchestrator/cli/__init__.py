"""What commands that people use every day have in common: how they look, how they fail, and whose work they are about."""
