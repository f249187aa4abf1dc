"""What runs beside the SuperLink."""

from edgemerge.flower import server_app

app = server_app()
