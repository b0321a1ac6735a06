# The names of this namespace: `globalstep.lazy` reads this file when it is imported.
