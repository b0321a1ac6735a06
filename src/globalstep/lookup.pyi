# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.text.lookup_tables import HashTable as StaticHashTable
from globalstep.text.lookup_tables import KeyValueTensorInitializer as KeyValueTensorInitializer
from globalstep.text.lookup_tables import StaticVocabularyTable as StaticVocabularyTable
from globalstep.text.lookup_tables import TextFileIndex as TextFileIndex
from globalstep.text.lookup_tables import TextFileInitializer as TextFileInitializer
