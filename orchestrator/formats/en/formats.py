"""Formats of times in the admin: the same as in logs and the API, in UTC. Django finds them through FORMAT_MODULE_PATH."""

DATETIME_FORMAT = "Y-m-d H:i:s"
DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
