"""What runs at each node."""

from edgemerge.flower import client_app
from pumps.readings import part

app = client_app(part)
