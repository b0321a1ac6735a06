# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.tf1.text.lookup_tables import HashTable as StaticHashTable
from globalstep.tf1.text.lookup_tables import KeyValueTensorInitializer as KeyValueTensorInitializer
from globalstep.tf1.text.lookup_tables import StaticVocabularyTable as StaticVocabularyTable
from globalstep.tf1.text.lookup_tables import TextFileIndex as TextFileIndex
from globalstep.tf1.text.lookup_tables import TextFileInitializer as TextFileInitializer
