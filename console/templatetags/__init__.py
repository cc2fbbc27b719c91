"""Words of templates: tags and filters of the console."""
