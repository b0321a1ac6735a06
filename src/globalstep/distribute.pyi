# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.deploy.server import Server as Server
