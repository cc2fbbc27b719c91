"""How the admin writes times: as logs and the API do, in UTC. Found by Django through FORMAT_MODULE_PATH."""

DATETIME_FORMAT = "Y-m-d H:i:s"
DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
