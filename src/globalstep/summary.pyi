# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.chief.events.summaries import Event as Event
from globalstep.chief.events.summaries import FileWriter as FileWriter
from globalstep.chief.events.summaries import FileWriterCache as FileWriterCache
from globalstep.chief.events.summaries import SessionLog as SessionLog
from globalstep.chief.events.summaries import Summary as Summary
from globalstep.chief.events.summaries import SummaryDescription as SummaryDescription
from globalstep.chief.events.summaries import TaggedRunMetadata as TaggedRunMetadata
from globalstep.chief.events.summaries import histogram as histogram
from globalstep.chief.events.summaries import image as image
from globalstep.chief.events.summaries import merge as merge
from globalstep.chief.events.summaries import merge_all as merge_all
from globalstep.chief.events.summaries import scalar as scalar
from globalstep.chief.events.summaries import text as text
