"""How the admin writes times: as logs and the API do. Found by Django through FORMAT_MODULE_PATH."""
