"""Held answers: what a person has answered takes effect some seconds later, and can be taken back until then."""
