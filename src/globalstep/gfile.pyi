# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.gfile import Copy as Copy
from globalstep.tf1.gfile import DeleteRecursively as DeleteRecursively
from globalstep.tf1.gfile import Exists as Exists
from globalstep.tf1.gfile import FastGFile as FastGFile
from globalstep.tf1.gfile import GFile as GFile
from globalstep.tf1.gfile import Glob as Glob
from globalstep.tf1.gfile import IsDirectory as IsDirectory
from globalstep.tf1.gfile import ListDirectory as ListDirectory
from globalstep.tf1.gfile import MakeDirs as MakeDirs
from globalstep.tf1.gfile import MkDir as MkDir
from globalstep.tf1.gfile import Open as Open
from globalstep.tf1.gfile import Remove as Remove
from globalstep.tf1.gfile import Rename as Rename
from globalstep.tf1.gfile import Stat as Stat
from globalstep.tf1.gfile import Walk as Walk
