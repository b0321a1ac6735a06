"""globalstep as `tensorflow`, where PYTHONPATH names the folder above; see globalstep.as_tensorflow."""

from globalstep.as_tensorflow import install

# It replaces this module in sys.modules, and an import gives what is there.
install()
