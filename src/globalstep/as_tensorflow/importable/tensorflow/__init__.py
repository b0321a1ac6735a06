"""What `import tensorflow` finds where PYTHONPATH names the folder above: globalstep; see globalstep.as_tensorflow."""

from globalstep.as_tensorflow import install

# It replaces this module in sys.modules, and Python gives whoever imports it what it finds there.
install()
