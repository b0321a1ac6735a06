# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.ops.summaries import Event as Event
from globalstep.tf1.ops.summaries import FileWriter as FileWriter
from globalstep.tf1.ops.summaries import FileWriterCache as FileWriterCache
from globalstep.tf1.ops.summaries import SessionLog as SessionLog
from globalstep.tf1.ops.summaries import Summary as Summary
from globalstep.tf1.ops.summaries import SummaryDescription as SummaryDescription
from globalstep.tf1.ops.summaries import TaggedRunMetadata as TaggedRunMetadata
from globalstep.tf1.ops.summaries import histogram as histogram
from globalstep.tf1.ops.summaries import image as image
from globalstep.tf1.ops.summaries import merge as merge
from globalstep.tf1.ops.summaries import merge_all as merge_all
from globalstep.tf1.ops.summaries import scalar as scalar
from globalstep.tf1.ops.summaries import text as text
