# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.deploy.server import Server as Server
